#include "launcher/sight/report_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/sight/job_diaries.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ReportHtml, SaysWhatTheTextSays) {
  const std::string html = ReportHtml(TwoNodes());
  EXPECT_THAT(html, StartsWith("<!doctype html>"));
  for (const char* part : {"<h1>job train ended well after 42s</h1>", "Goodput 73.2 %",
                           "node2, ranks 2-3", "rank 1 hangs", "it waits for its data"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(ReportHtml, EscapesWhatProgramsSaid) {
  const std::string html = ReportHtml(TwoNodes());
  EXPECT_THAT(html, HasSubstr("ValueError: bad &lt;batch&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("<batch>")));
}

// It is complete on a machine without a network, and opening it tells nobody.
TEST(ReportHtml, AsksForNothingElse) {
  const std::string html = ReportHtml(TwoNodes());
  for (const char* part : {"http:", "https:", "src=", "href=", "url(", "<script", "@import"}) {
    EXPECT_THAT(html, Not(HasSubstr(part)));
  }
}

}  // namespace
}  // namespace muster::launcher
