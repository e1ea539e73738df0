// A library that not every machine has, for tests of what opens such: two functions.
extern "C" {

int fake_answer() { return 42; }
int fake_sum(int a, int b) { return a + b; }

}  // extern "C"
