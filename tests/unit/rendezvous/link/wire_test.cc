#include "rendezvous/link/wire.h"

#include "rendezvous/link/renewal.h"

#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <functional>

#include "proto/rendezvous.pb.h"
#include "tests/unit/rendezvous/link/filled_values.h"

namespace muster::rendezvous {
namespace {

// The names of fields of `message`, at any depth, that were left at their default.
void CollectUnset(const google::protobuf::Message& message, const std::string& path,
                  std::vector<std::string>* unset) {
  const auto& descriptor = *message.GetDescriptor();
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const auto* field = descriptor.field(i);
    const std::string name = absl::StrCat(path, ".", field->name());
    const bool is_set = field->is_repeated() ? reflection.FieldSize(message, field) > 0
                                             : reflection.HasField(message, field);
    if (!is_set) {
      if (field->real_containing_oneof() == nullptr) unset->push_back(name);
    } else if (field->message_type() != nullptr && !field->is_repeated()) {
      CollectUnset(reflection.GetMessage(message, field), name, unset);
    } else if (field->message_type() != nullptr) {
      CollectUnset(reflection.GetRepeatedMessage(message, field, 0), name, unset);
    }
  }
}

std::vector<std::string> UnsetFields(const google::protobuf::Message& message) {
  std::vector<std::string> unset;
  CollectUnset(message, "", &unset);
  return unset;
}

// Over the wire and back, as bytes.
template <typename Message, typename Value>
auto RoundTrip(const Value& value) {
  Message message;
  Encode(value, &message);
  Message received;
  EXPECT_TRUE(received.ParseFromString(message.SerializeAsString()));
  return Decode(received);
}

proto::Report EncodedReport() {
  proto::Report message;
  Encode(FilledReport(), &message);
  return message;
}

Directive WithBody(DirectiveBody body) {
  return {.term = ServerTerm(3),
          .instance = Instance(4),
          .revision = 5,
          .report_sequence = 6,
          .body = std::move(body)};
}

TEST(ReportOnTheWire, KeepsEveryField) {
  const auto back = RoundTrip<proto::Report>(FilledReport());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, FilledReport());
}

TEST(ReportOnTheWire, FillsEveryFieldOfTheMessage) {
  EXPECT_EQ(UnsetFields(EncodedReport()), std::vector<std::string>());
}

TEST(ReportOnTheWire, KeepsAnAbsentNodeRankAndDeparture) {
  FencedReport report = FilledReport();
  report.report.node.node_rank.reset();
  report.report.departure.reset();
  report.report.stop_floor.reset();
  report.report.stop_wish.reset();
  report.report.round = kNoRound;
  const auto back = RoundTrip<proto::Report>(report);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, report);
}

TEST(ReportOnTheWire, KeepsEachPhase) {
  for (const AgentPhase phase :
       {AgentPhase::kJoining, AgentPhase::kRunning, AgentPhase::kFailed, AgentPhase::kSucceeded,
        AgentPhase::kStopped, AgentPhase::kLeaving}) {
    FencedReport report = FilledReport();
    report.report.phase = phase;
    EXPECT_EQ(RoundTrip<proto::Report>(report).value().report.phase, phase) << ToString(phase);
  }
}

TEST(ReportOnTheWire, KeepsAnInfiniteTimeOut) {
  FencedReport report = FilledReport();
  report.report.settings.join_timeout = absl::InfiniteDuration();
  EXPECT_EQ(RoundTrip<proto::Report>(report).value(), report);
}

TEST(ReportOnTheWire, CarriesOutputThatIsNotUtf8) {
  FencedReport report = FilledReport();
  report.report.failures[0].last_output = "\xff\xfe";
  EXPECT_EQ(RoundTrip<proto::Report>(report).value(), report);
}

TEST(ReportOnTheWire, CutsLongFailuresToFitOneMessage) {
  FencedReport report = FilledReport();
  report.report.failures[0].message = std::string(1 << 17, 'm');
  report.report.failures[0].last_output = std::string(1 << 17, 'x') + "the end";
  report.report.failures.assign(kFailuresSent + 1, WorkerFailure(report.report.failures[0]));
  proto::Report message;
  Encode(report, &message);
  EXPECT_LT(message.ByteSizeLong(), size_t{kMaxMessageBytes});
  const auto back = Decode(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->report.failures.size(), size_t{kFailuresSent});
  EXPECT_TRUE(back->report.failures[0].last_output.ends_with("the end"));
}

struct Damage {
  std::string field;  // named in the refusal
  std::function<void(proto::Report&)> apply;
};

class DamagedReport : public testing::TestWithParam<Damage> {};

TEST_P(DamagedReport, IsRefusedByTheNameOfTheField) {
  proto::Report message = EncodedReport();
  GetParam().apply(message);
  const auto back = Decode(message);
  EXPECT_EQ(back.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(back.status().message().find(GetParam().field), absl::string_view::npos)
      << back.status();
}

const std::string kTooLong(kMaxTextBytes + 1, 'x');

INSTANTIATE_TEST_SUITE_P(
    Fields, DamagedReport,
    testing::Values(
        Damage{"phase", [](auto& m) { m.set_phase(static_cast<proto::Phase>(99)); }},
        Damage{"phase", [](auto& m) { m.clear_phase(); }},
        Damage{"node", [](auto& m) { m.clear_node(); }},
        Damage{"settings", [](auto& m) { m.clear_settings(); }},
        Damage{"term", [](auto& m) { m.set_term(-1); }},
        Damage{"instance", [](auto& m) { m.set_instance(-1); }},
        Damage{"round", [](auto& m) { m.set_round(-2); }},
        Damage{"num_nodes", [](auto& m) { m.set_num_nodes(-1); }},
        Damage{"past.attempts", [](auto& m) { m.mutable_past()->set_attempts(-1); }},
        Damage{"past.restarts_used", [](auto& m) { m.mutable_past()->set_restarts_used(-1); }},
        Damage{"local_world_size", [](auto& m) { m.mutable_node()->set_local_world_size(-1); }},
        Damage{"local_world_size", [](auto& m) { m.mutable_node()->set_local_world_size(4097); }},
        Damage{"node_rank", [](auto& m) { m.mutable_node()->set_node_rank(-1); }},
        Damage{"store_port", [](auto& m) { m.mutable_node()->set_store_port(65536); }},
        Damage{"worker_ports", [](auto& m) { m.mutable_node()->add_worker_ports(-1); }},
        Damage{"worker_ports",
               [](auto& m) { m.mutable_node()->mutable_worker_ports()->Resize(4097, 1); }},
        Damage{"node.name", [](auto& m) { m.mutable_node()->set_name(kTooLong); }},
        Damage{"min_nodes", [](auto& m) { m.mutable_settings()->set_min_nodes(0); }},
        Damage{"max_nodes", [](auto& m) { m.mutable_settings()->set_max_nodes(1); }},
        Damage{"max_restarts", [](auto& m) { m.mutable_settings()->set_max_restarts(-1); }},
        Damage{"join_timeout", [](auto& m) { m.mutable_settings()->set_join_timeout_us(-1); }},
        Damage{"orphan_timeout", [](auto& m) { m.mutable_settings()->set_orphan_timeout_us(-1); }},
        Damage{"left_exit_code", [](auto& m) { m.mutable_settings()->set_left_exit_code(256); }},
        Damage{"scale_up", [](auto& m) { m.mutable_settings()->clear_scale_up(); }},
        Damage{"failures",
               [](auto& m) {
                 for (int i = 0; i < 4097; ++i) m.add_failures();
               }},
        Damage{"failure.signal", [](auto& m) { m.mutable_failures(0)->set_signal(-9); }},
        Damage{"failure.message", [](auto& m) { m.mutable_failures(0)->set_message(kTooLong); }},
        Damage{"failure.age", [](auto& m) { m.mutable_failures(0)->set_age_us(-1); }},
        Damage{"stop_floor", [](auto& m) { m.set_stop_floor(-2); }},
        Damage{"stop_wish.signal", [](auto& m) { m.mutable_stop_wish()->set_signal(1000); }},
        Damage{"unkillable_pids", [](auto& m) { m.add_unkillable_pids(-1); }},
        Damage{"departure.signal", [](auto& m) { m.mutable_departure()->set_signal(1000); }}));

class DirectiveOnTheWire : public testing::TestWithParam<DirectiveBody> {};

TEST_P(DirectiveOnTheWire, KeepsEveryField) {
  const auto back = RoundTrip<proto::Directive>(WithBody(GetParam()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, WithBody(GetParam()));
}

TEST_P(DirectiveOnTheWire, FillsEveryFieldOfTheMessage) {
  proto::Directive message;
  Encode(WithBody(GetParam()), &message);
  EXPECT_EQ(UnsetFields(message), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Bodies, DirectiveOnTheWire,
                         testing::Values(Wait{"waiting"}, RunRound{FilledAssignment()},
                                         StopRound{Round(2), StopCause::kRestart, "why", true, 7},
                                         StopRound{Round(2), StopCause::kMembershipChange, "why",
                                                   true, 7},
                                         StopRound{Round(2), StopCause::kJobFailed, "why", true, 7},
                                         StopAt{Round(2), 41, "maintenance"},
                                         StopAt{Round(2), kStopStepOpen, "maintenance"},
                                         EndJob{{.exit_code = 7,
                                                 .reason = "why",
                                                 .root_cause = FilledFailure(),
                                                 .failures = {FilledFailure()}}},
                                         Refuse{absl::InvalidArgumentError("min_nodes differs")}));

TEST(StopRequestOnTheWire, KeepsEveryField) {
  const StopRequest request{"node2", "maintenance", true};
  [[maybe_unused]] const auto& [a, b, c] = request;
  EXPECT_EQ(RoundTrip<proto::Ask>(request).value(), request);
  proto::Ask message;
  Encode(request, &message);
  EXPECT_EQ(UnsetFields(message), std::vector<std::string>());
}

TEST(StopRequestFromTheWire, HasNoControlCharacters) {
  proto::Ask message;
  message.set_reason("a\nb\033");
  EXPECT_EQ(Decode(message)->reason, "a?b?");
}

TEST(StopAnswerOnTheWire, KeepsTextAndErrors) {
  const StopAnswer good{.text = "the job stops"};
  EXPECT_EQ(RoundTrip<proto::Answer>(good).value(), good);
  const StopAnswer bad{.status = absl::NotFoundError("no such job")};
  EXPECT_EQ(RoundTrip<proto::Answer>(bad).value(), bad);
}

TEST(DirectiveFromTheWire, IsRefusedWithoutABody) {
  EXPECT_EQ(Decode(proto::Directive()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DirectiveFromTheWire, IsRefusedWithAnUnknownCause) {
  proto::Directive message;
  message.mutable_stop_round()->set_cause(static_cast<proto::Cause>(17));
  EXPECT_EQ(Decode(message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DirectiveFromTheWire, IsRefusedWhenARefusalIsNoError) {
  proto::Directive message;
  message.mutable_refuse()->set_code(0);
  EXPECT_EQ(Decode(message).status().code(), absl::StatusCode::kInvalidArgument);
}

class StoreRequestOnTheWire : public testing::TestWithParam<StoreOperation> {};

TEST_P(StoreRequestOnTheWire, KeepsAndFillsEveryField) {
  const StoreRequest request{
      .request_id = 9, .round = Round(3), .operation = GetParam(), .instance = Instance(4)};
  proto::StoreRequest message, again;
  Encode(request, &message);
  EXPECT_EQ(UnsetFields(message), std::vector<std::string>());
  const auto back = Decode(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->request_id, 9u);
  EXPECT_EQ(back->round, Round(3));
  EXPECT_EQ(back->instance, Instance(4));
  EXPECT_EQ(back->operation.index(), request.operation.index());
  Encode(*back, &again);
  EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
}

INSTANTIATE_TEST_SUITE_P(Operations, StoreRequestOnTheWire,
                         testing::Values(StoreSet{"key", "value"}, StoreGet{"key"},
                                         StoreWait{{"a", "b"}, absl::Seconds(3)},
                                         StoreAdd{"key", -5},
                                         StoreCompareAndSet{"key", "old", "new"},
                                         StoreDelete{"key"},
                                         UniqueIdExchange{"group", 2, 1, 4, "id", absl::Seconds(3)},
                                         CommitCheckpoint{ServerTerm(8), 900}));

TEST(StoreRequestFromTheWire, IsRefusedWithANegativeStep) {
  proto::StoreRequest message;
  message.mutable_commit_checkpoint()->set_step(-1);
  EXPECT_EQ(Decode(message).status().code(), absl::StatusCode::kInvalidArgument);
}

class ScaleUpOnTheWire : public testing::TestWithParam<ScaleUp> {};

TEST_P(ScaleUpOnTheWire, IsKept) {
  FencedReport report = FilledReport();
  report.report.settings.scale_up = GetParam();
  const auto back = RoundTrip<proto::Report>(report);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->report.settings.scale_up, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, ScaleUpOnTheWire,
                         testing::Values(ScaleUp::kNow, ScaleUp::kCheckpoint, ScaleUp::kNever));

TEST(StoreRequestFromTheWire, IsRefusedWithoutAnOperation) {
  EXPECT_EQ(Decode(proto::StoreRequest()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StoreRequestFromTheWire, IsRefusedWithALongKey) {
  proto::StoreRequest message;
  message.mutable_get()->set_key(std::string(kMaxStoreKeyBytes + 1, 'k'));
  EXPECT_EQ(Decode(message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StoreRequestFromTheWire, IsRefusedWithARankOutsideItsGroup) {
  proto::StoreRequest message;
  message.mutable_exchange_unique_id()->set_group_size(2);
  message.mutable_exchange_unique_id()->set_group_rank(2);
  EXPECT_EQ(Decode(message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StoreReplyOnTheWire, KeepsEveryField) {
  const StoreReply reply{8, absl::NotFoundError("no \xff"), {"a", "\xff"}};
  const auto back = RoundTrip<proto::StoreReply>(reply);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, reply);
}

TEST(StoreReplyFromTheWire, IsRefusedWithAnUnknownCode) {
  proto::StoreReply message;
  message.set_code(99);
  EXPECT_EQ(Decode(message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Renewal, IsAReportThatDiffersInItsNumberOnly) {
  AgentReport before = FilledReport().report;
  before.failures.clear();
  AgentReport next = before;
  ++next.sequence;
  EXPECT_TRUE(IsRenewalOf(next, before));
  next.phase = AgentPhase::kRunning;
  EXPECT_FALSE(IsRenewalOf(next, before));
  EXPECT_FALSE(IsRenewalOf(FilledReport().report, FilledReport().report)) << "failures grow older";
}

TEST(Repeat, IsADirectiveThatDiffersInItsNumbersOnly) {
  Directive before{.term = ServerTerm(1), .instance = Instance(2), .body = Wait{"waiting"}};
  Directive next = before;
  next.revision = 7;
  next.report_sequence = 8;
  EXPECT_TRUE(IsRepeatOf(next, before));
  next.body = Wait{"still waiting"};
  EXPECT_FALSE(IsRepeatOf(next, before));
}

}  // namespace
}  // namespace muster::rendezvous
