#include "worker_runtime/train/console.h"

#include <gtest/gtest.h>

namespace muster::train {
namespace {

TEST(IsUtf8Locale, AsksTheFirstVariableThatIsSet) {
  EXPECT_TRUE(IsUtf8Locale("", "", "C.UTF-8"));
  EXPECT_TRUE(IsUtf8Locale("", "de_DE.utf8", "C"));
  EXPECT_FALSE(IsUtf8Locale("C", "", "C.UTF-8"));
  EXPECT_FALSE(IsUtf8Locale("", "", ""));
}

}  // namespace
}  // namespace muster::train
