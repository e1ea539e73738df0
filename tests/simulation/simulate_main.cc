// Runs seeds of the simulator: `deploy/dev simulate`.
#include "tests/simulation/simulate.h"

int main(int argc, char** argv) { return muster::simulation::Simulate(argc, argv); }
