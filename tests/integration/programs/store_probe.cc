// A worker that takes a unique id from rank 0 through its agent, tries to take it a second time,
// and meets the other ranks at the store. Writes what it saw to $OUT/<round>.<rank>; rank 1 of
// round 0 then fails, so that there is a second round.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/agent.pb.h"
#include "proto/io/store_wire.h"

namespace {

using muster::StoreOperation;
using muster::StoreReply;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) std::exit(90);
  return value;
}

// The agent's socket, one request at a time. Any trouble ends the program with 91.
class AgentSocket {
 public:
  explicit AgentSocket(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{.sun_family = AF_UNIX};
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) std::exit(91);
  }
  ~AgentSocket() { close(fd_); }

  void Greet(int64_t instance, int64_t round, int local_rank) {
    muster::proto::WorkerMessage message;
    message.mutable_hello()->set_protocol_version(1);
    message.mutable_hello()->set_instance(instance);
    message.mutable_hello()->set_round(round);
    message.mutable_hello()->set_local_rank(local_rank);
    Send(message);
    if (!Receive().has_welcome()) std::exit(91);
  }

  StoreReply Ask(StoreOperation operation) {
    muster::proto::WorkerMessage message;
    muster::Encode(
        muster::StoreRequest{.request_id = ++last_id_, .operation = std::move(operation)},
        message.mutable_store());
    Send(message);
    absl::StatusOr<StoreReply> reply = muster::Decode(Receive().store());
    if (!reply.ok() || reply->request_id != last_id_) std::exit(91);
    return *reply;
  }

 private:
  void Send(const muster::proto::WorkerMessage& message) {
    const std::string body = message.SerializeAsString();
    std::string frame(4, '\0');
    for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (8 * i));
    frame += body;
    if (send(fd_, frame.data(), frame.size(), 0) != static_cast<ssize_t>(frame.size()))
      std::exit(91);
  }

  muster::proto::WorkerReply Receive() {
    const std::string header = Read(4);
    size_t size = 0;
    for (int i = 3; i >= 0; --i) size = size << 8 | static_cast<unsigned char>(header[i]);
    muster::proto::WorkerReply reply;
    if (!reply.ParseFromString(Read(size))) std::exit(91);
    return reply;
  }

  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    if (recv(fd_, bytes.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size)) std::exit(91);
    return bytes;
  }

  const int fd_;
  uint64_t last_id_ = 0;
};

}  // namespace

int main() {
  const std::string round = Variable("MUSTER_ROUND");
  const int rank = std::stoi(Variable("RANK"));
  const int world_size = std::stoi(Variable("WORLD_SIZE"));
  AgentSocket agent(Variable("MUSTER_AGENT_SOCKET"));
  agent.Greet(std::stoll(Variable("MUSTER_INSTANCE")), std::stoll(round),
              std::stoi(Variable("LOCAL_RANK")));

  muster::UniqueIdExchange exchange{
      .group = "world", .group_rank = rank, .group_size = world_size, .timeout = absl::Seconds(20)};
  if (rank == 0) exchange.unique_id = absl::StrCat("id of round ", round, " by pid ", getpid());
  const StoreReply id = agent.Ask(exchange);
  const StoreReply again = agent.Ask(exchange);

  (void)agent.Ask(muster::StoreSet{absl::StrCat("here/", rank), "yes"});
  muster::StoreWait everyone{.timeout = absl::Seconds(20)};
  for (int r = 0; r < world_size; ++r) everyone.keys.push_back(absl::StrCat("here/", r));
  const StoreReply met = agent.Ask(everyone);
  const StoreReply sum = agent.Ask(muster::StoreAdd{"count", rank});
  const StoreReply absent = agent.Ask(muster::StoreWait{{"never"}, absl::Milliseconds(50)});

  std::ofstream(absl::StrCat(Variable("OUT"), "/", round, ".", rank))
      << absl::StrJoin(id.values, ",") << "\n"
      << absl::StatusCodeToString(again.status.code()) << "\n"
      << met.values.size() << "\n"
      << absl::StatusCodeToString(sum.status.code()) << "\n"
      << absl::StatusCodeToString(absent.status.code()) << "\n";
  // Nobody is stopped by rank 1's failure before it has written.
  (void)agent.Ask(muster::StoreSet{absl::StrCat("written/", rank), "yes"});
  muster::StoreWait written{.timeout = absl::Seconds(20)};
  for (int r = 0; r < world_size; ++r) written.keys.push_back(absl::StrCat("written/", r));
  (void)agent.Ask(written);
  return round == "0" && rank == 1 ? 5 : 0;
}
