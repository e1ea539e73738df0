#include "tests/support/fake_agent.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/agent.pb.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/stop_wire.h"
#include "proto/io/store_wire.h"
#include "proto/spec/worker_env.h"
#include "tests/support/patience.h"

namespace muster::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

bool ReadAll(int fd, char* data, size_t size) {
  return size == 0 || recv(fd, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

}  // namespace

FakeAgent::FakeAgent(Round round, Instance instance) : round_(round), instance_(instance) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path().copy(address.sun_path, sizeof(address.sun_path) - 1);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  MUSTER_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  MUSTER_CHECK(listen(listener_, 16) == 0);
  acceptor_ = std::thread([this] { Accept(); });
}

FakeAgent::~FakeAgent() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  HangUp();
  std::vector<std::thread> threads;
  {
    base::MutexLock lock(mu_);
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  base::MutexLock lock(mu_);
  for (const Worker& worker : workers_) close(worker.fd);
  close(listener_);
}

EnvironmentMap FakeAgent::EnvironmentOf(int rank, int size) const {
  WorkerEnv env;
  env.rank = Rank(rank);
  env.local_rank = LocalRank(rank);
  env.world_size = size;
  env.local_world_size = size;
  env.role_rank = rank;
  env.role_world_size = size;
  env.master_addr = "127.0.0.1";
  env.restart_count = 3;
  env.run_id = "j7";
  env.instance = instance_;
  env.round = round_;
  env.agent_socket = path();
  return EncodeWorkerEnv(env, {});
}

void FakeAgent::Tell(const StopState& stop) {
  base::MutexLock lock(mu_);
  stop_ = stop;
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    if (workers_[worker].obeys) SendStop(worker);
  }
}

void FakeAgent::EndRound(bool is_followed, const std::string& reason) {
  base::MutexLock lock(mu_);
  round_over_ = {is_followed, reason};
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    if (workers_[worker].survives) SendRoundOver(worker);
  }
}

void FakeAgent::GiveRound(int local_rank, const EnvironmentMap& environment) {
  proto::WorkerReply reply;
  for (const auto& [name, value] : environment) {
    reply.mutable_next_round()->add_environment(name + "=" + value);
  }
  base::MutexLock lock(mu_);
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    const Worker& to = workers_[worker];
    if (to.awaits_round && to.local_rank == local_rank) Send(worker, reply);
  }
}

void FakeAgent::AnswerCommitsWith(absl::Status status) {
  base::MutexLock lock(mu_);
  commit_answer_ = std::move(status);
}

void FakeAgent::AtNextCommit(std::function<void(pid_t)> act) {
  base::MutexLock lock(mu_);
  at_commit_ = std::move(act);
}

void FakeAgent::HangUp() {
  base::MutexLock lock(mu_);
  for (const Worker& worker : workers_) shutdown(worker.fd, SHUT_RDWR);
}

bool FakeAgent::WaitFor(Sign sign, int num_workers) {
  const MonoTime deadline = MonoNow() + Patience(kPatience);
  base::MutexLock lock(mu_);
  while (Count(sign) < num_workers && MonoNow() < deadline) changed_.WaitUntil(mu_, deadline);
  return Count(sign) >= num_workers;
}

int FakeAgent::Count(Sign sign) const {
  if (sign == Sign::kFloor) return static_cast<int>(floors_.size());
  if (sign == Sign::kGoodbye) return static_cast<int>(goodbyes_.size());
  int count = 0;
  for (const Worker& worker : workers_) {
    count += sign == Sign::kObeys      ? worker.obeys
             : sign == Sign::kSurvives ? worker.survives
                                       : worker.awaits_round;
  }
  return count;
}

std::map<int, int64_t> FakeAgent::floors() {
  base::MutexLock lock(mu_);
  return floors_;
}

std::map<int, int64_t> FakeAgent::goodbyes() {
  base::MutexLock lock(mu_);
  return goodbyes_;
}

void FakeAgent::Accept() {
  while (true) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    base::MutexLock lock(mu_);
    const size_t worker = workers_.size();
    workers_.push_back({.fd = fd});
    threads_.emplace_back([this, worker] { Serve(worker); });
  }
}

void FakeAgent::Serve(size_t worker) {
  int fd = -1;
  {
    base::MutexLock lock(mu_);
    fd = workers_[worker].fd;
  }
  uint32_t size = 0;
  while (ReadAll(fd, reinterpret_cast<char*>(&size), sizeof(size))) {
    std::string body(size, '\0');
    proto::WorkerMessage message;
    if (!ReadAll(fd, body.data(), size) || !message.ParseFromString(body)) break;
    if (!Handle(worker, message)) break;
  }
  shutdown(fd, SHUT_RDWR);
}

bool FakeAgent::Handle(size_t worker, const proto::WorkerMessage& message) {
  proto::WorkerReply reply;
  if (message.has_store()) {
    Encode(Perform(worker, *Decode(message.store())), reply.mutable_store());
  }
  base::MutexLock lock(mu_);
  Worker& from = workers_[worker];
  if (message.has_hello()) {
    if (message.hello().round() != round_.value()) {
      reply.mutable_refused()->set_reason(absl::StrCat("it is not of round ", round_.value()));
      Send(worker, reply);
      return false;
    }
    from.local_rank = message.hello().local_rank();
    from.pid = message.hello().pid();
    reply.mutable_welcome()->set_round(round_.value());
  }
  if (message.has_hello() || message.has_store()) Send(worker, reply);
  if (message.has_obeys_stop()) {
    from.obeys = true;
    if (stop_.is_stopping) SendStop(worker);
  }
  if (message.has_survives_rounds()) {
    from.survives = true;
    if (round_over_.has_value()) SendRoundOver(worker);
  }
  if (message.has_awaits_round()) from.awaits_round = true;
  if (message.has_stop_floor()) floors_[from.local_rank] = message.stop_floor().step();
  if (message.has_goodbye()) goodbyes_[from.local_rank] = message.goodbye().step();
  changed_.NotifyAll();
  return true;
}

StoreReply FakeAgent::Perform(size_t worker, const StoreRequest& request) {
  StoreReply reply{.request_id = request.request_id};
  if (const auto* set = std::get_if<StoreSet>(&request.operation)) {
    reply.status = store_.Set(set->key, set->value, {});
  } else if (const auto* wait = std::get_if<StoreWait>(&request.operation)) {
    auto value = WaitInRound(wait->keys[0], MonoNow() + wait->timeout);
    reply.status = value.status();
    if (value.ok()) reply.values = {*value};
  } else if (std::holds_alternative<CommitCheckpoint>(request.operation)) {
    reply.status = AnswerCommit(worker);
  }
  return reply;
}

// The round's end answers it: what the worker says next is behind it on the connection.
absl::StatusOr<std::string> FakeAgent::WaitInRound(const std::string& key, MonoTime deadline) {
  for (;;) {
    const MonoTime next = MonoNow() + absl::Milliseconds(10);
    absl::StatusOr<std::string> value = store_.Wait(key, std::min(next, deadline));
    if (value.ok() || deadline <= next) return value;
    base::MutexLock lock(mu_);
    if (round_over_.has_value()) return absl::AbortedError(round_over_->second);
  }
}

absl::Status FakeAgent::AnswerCommit(size_t worker) {
  base::MutexLock lock(mu_);
  if (at_commit_) std::exchange(at_commit_, nullptr)(workers_[worker].pid);
  return commit_answer_;
}

void FakeAgent::Send(size_t worker, const proto::WorkerReply& reply) {
  const std::string body = reply.SerializeAsString();
  const uint32_t size = static_cast<uint32_t>(body.size());
  std::string frame(sizeof(size), '\0');
  for (size_t i = 0; i < sizeof(size); ++i) frame[i] = static_cast<char>(size >> (8 * i));
  frame += body;
  send(workers_[worker].fd, frame.data(), frame.size(), MSG_NOSIGNAL);
}

void FakeAgent::SendRoundOver(size_t worker) {
  proto::WorkerReply reply;
  reply.mutable_round_over()->set_is_followed(round_over_->first);
  reply.mutable_round_over()->set_reason(round_over_->second);
  Send(worker, reply);
}

void FakeAgent::SendStop(size_t worker) {
  proto::WorkerReply reply;
  Encode(stop_, reply.mutable_stop());
  Send(worker, reply);
}

}  // namespace muster::testing
