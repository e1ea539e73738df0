#include "rendezvous/server/musterd_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::rendezvous {
namespace {

TEST(ParseMusterdCommand, ListensWhereItIsTold) {
  EXPECT_EQ(ParseMusterdCommand({}, {})->options.listen, (Endpoint{"localhost", 29400}));
  EXPECT_EQ(ParseMusterdCommand({"--listen=node1:0"}, {})->options.listen, (Endpoint{"node1", 0}));
  EXPECT_EQ(ParseMusterdCommand({"--listen", "[::1]:1"}, {})->options.listen, (Endpoint{"::1", 1}));
}

TEST(ParseMusterdCommand, RefusesWhatItCannotDo) {
  for (const char* text :
       {"", ":1", "node1", "node1:", "node1:x", "node1:65536", "node1:-1", "::1:29400", "[]:1"}) {
    const absl::Status status = ParseMusterdCommand({std::string("--listen=") + text}, {}).status();
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expected HOST:PORT")) << text;
  }
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--lease=0"},
                                             {"--lease=2h"},
                                             {"--health=/healthz"},
                                             {"--tls=maybe"},
                                             {"--log_format=xml"},
                                             {"--listn=a:1"},
                                             {"x"},
                                             {"--token_dir=d", "--token_file=f"}}) {
    EXPECT_EQ(ParseMusterdCommand(args, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << args.front();
  }
}

TEST(ParseMusterdCommand, ReadsItsOptions) {
  const absl::StatusOr<MusterdCommand> command =
      ParseMusterdCommand({"--lease=2.5", "--tls=off", "--log_format=json", "--port_file=p",
                           "--token_dir=d", "--metrics=9400", "--health=[::]:9401"},
                          {});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->options.lease, absl::Seconds(2.5));
  EXPECT_EQ(command->options.tls, TlsMode::kOff);
  EXPECT_EQ(command->options.log_format, log::Format::kJson);
  EXPECT_EQ(command->options.port_file, "p");
  EXPECT_EQ(command->options.token_dir, "d");
  EXPECT_EQ(command->options.metrics, (Endpoint{"127.0.0.1", 9400}));
  EXPECT_EQ(command->options.health, (Endpoint{"::", 9401}));
  EXPECT_THAT(ParseMusterdCommand({"--help"}, {})->print,
              ::testing::HasSubstr("--token_file=FILE"));
}

}  // namespace
}  // namespace muster::rendezvous
