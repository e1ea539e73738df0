#include "launcher/sight/observer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/process/runtime_directory.h"
#include "agent/sight/sight_socket.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/host_name.h"
#include "proto/io/log.h"
#include "proto/io/read_file.h"
#include "proto/io/unique_fd.h"
#include "proto/io/user_secret.h"
#include "rendezvous/client/grpc_link.h"
#include "rendezvous/link/inquiry_wire.h"

namespace muster::launcher {
namespace {

// An agent answers within a second, for the rendezvous if need be.
constexpr absl::Duration kAgentPatience = absl::Seconds(2);
// An answer, with the names of its nodes.
constexpr size_t kAnswerBytesMax = 2 * kInquiryAnswerBytesMax;
// The run id said where no job is named: the hand-shake wants one, and musterd serves no job of
// this.
constexpr char kNoJob[] = "none";

absl::Status Failed(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too long for a socket"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // The connection must not wait: the queue of an agent that is stopped may be full.
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed("connect to", path);
  }
  return fd;
}

pid_t PidBehind(const UniqueFd& fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.pid : 0;
}

class SocketObserver final : public Observer {
 public:
  SocketObserver(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::StatusOr<InquiryAnswer> Ask(Inquiry inquiry, absl::Duration patience) override {
    const MonoTime deadline = MonoNow() + patience;
    std::string frame = rendezvous::Framed(rendezvous::BytesOf(inquiry));
    MUSTER_RETURN_IF_ERROR(Move(frame.data(), frame.size(), deadline, /*sends=*/true));
    unsigned char header[4];
    MUSTER_RETURN_IF_ERROR(
        Move(reinterpret_cast<char*>(header), sizeof(header), deadline, /*sends=*/false));
    size_t size = 0;
    for (int i = 0; i < 4; ++i) size |= size_t{header[i]} << (8 * i);
    if (size > kAnswerBytesMax) {
      return absl::InternalError(absl::StrCat("an answer of ", size, " bytes from ", path_));
    }
    std::string bytes(size, '\0');
    MUSTER_RETURN_IF_ERROR(Move(bytes.data(), bytes.size(), deadline, /*sends=*/false));
    MUSTER_ASSIGN_OR_RETURN(InquiryAnswer answer, rendezvous::InquiryAnswerFrom(bytes));
    if (!answer.status.ok()) return answer.status;
    return answer;
  }

 private:
  absl::Status Move(char* bytes, size_t size, MonoTime deadline, bool sends) {
    while (size > 0) {
      const ssize_t moved =
          sends ? ::send(fd_.get(), bytes, size, MSG_NOSIGNAL) : ::recv(fd_.get(), bytes, size, 0);
      if (moved > 0) {
        bytes += moved;
        size -= static_cast<size_t>(moved);
        continue;
      }
      if (moved == 0) return absl::UnavailableError("the agent has closed the connection");
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Failed("speak to", path_);
      const absl::Duration left = deadline - MonoNow();
      pollfd ready{
          .fd = fd_.get(), .events = static_cast<short>(sends ? POLLOUT : POLLIN), .revents = 0};
      if (left <= absl::ZeroDuration() ||
          ::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) == 0) {
        return absl::UnavailableError(
            "the agent of the job on this node does not answer (is it stopped?)");
      }
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const UniqueFd fd_;
};

class NetworkObserver final : public Observer {
 public:
  NetworkObserver(rendezvous::GrpcLinkOptions options, std::string endpoint,
                  absl::Duration patience)
      : endpoint_(std::move(endpoint)),
        patience_(patience),
        work_(loop_.get_executor()),
        link_(loop_, std::move(options)) {
    link_.Open({.on_inquiry_answer =
                    [this](InquiryAnswer answer) {
                      answer_ = std::move(answer);
                      loop_.stop();
                    },
                .on_state =
                    [this](bool up, std::string why, absl::Status fatal) {
                      is_up_ = up;
                      if (!up) detail_ = std::move(why);
                      fatal_ = std::move(fatal);
                      loop_.stop();
                    }});
  }

  absl::StatusOr<InquiryAnswer> Ask(Inquiry inquiry, absl::Duration patience) override {
    const MonoTime up_by = MonoNow() + patience_;
    const MonoTime quiet_until = has_said_wait_ ? up_by : Min(up_by, MonoNow() + kQuietWait);
    answer_.reset();
    while (!is_up_) {
      if (!fatal_.ok()) return fatal_;
      if (RunUntil(has_said_wait_ ? up_by : quiet_until)) continue;
      if (quiet_until == up_by || MonoNow() >= up_by) {
        return Silence("cannot be reached", patience_);
      }
      has_said_wait_ = true;
      SayWait(endpoint_, patience_);
    }
    const MonoTime deadline = MonoNow() + patience;
    inquiry.id = ++next_id_;
    link_.SendInquiry(inquiry);
    while (!answer_ || answer_->id != next_id_) {
      if (!is_up_) return Silence("was lost", patience);
      if (!RunUntil(deadline)) return Silence("does not answer", patience);
    }
    InquiryAnswer answer = *std::exchange(answer_, std::nullopt);
    if (!answer.status.ok()) return answer.status;
    return answer;
  }

 private:
  // False at the deadline; true: something has happened.
  bool RunUntil(MonoTime deadline) {
    loop_.restart();
    const absl::Duration left = deadline - MonoNow();
    if (left <= absl::ZeroDuration()) return false;
    asio::steady_timer timer(loop_, absl::ToChronoNanoseconds(left));
    bool is_over = false;
    timer.async_wait([&](const asio::error_code& error) {
      if (error) return;
      is_over = true;
      loop_.stop();
    });
    loop_.run();
    // Its handler refers to this call.
    timer.cancel();
    loop_.restart();
    loop_.poll();
    return !is_over;
  }

  absl::Status Silence(absl::string_view what, absl::Duration patience) const {
    return absl::UnavailableError(absl::StrCat("the rendezvous at ", endpoint_, " ", what,
                                               " within ", absl::FormatDuration(patience),
                                               detail_.empty() ? "" : ": ", detail_));
  }

  const std::string endpoint_;
  const absl::Duration patience_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  bool is_up_ = false;
  bool has_said_wait_ = false;
  std::string detail_;
  absl::Status fatal_;
  std::optional<InquiryAnswer> answer_;
  uint64_t next_id_ = 0;
  rendezvous::GrpcLink link_;
};

std::vector<std::string> SocketsHere(const EnvironmentMap& environment) {
  const std::vector<std::string> prefixes = agent::RuntimeDirectoryPrefixes(
      {.xdg_runtime_dir = VariableOrEmpty(environment, "XDG_RUNTIME_DIR"),
       .temporary_places = agent::TemporaryPlaces(VariableOrEmpty(environment, "TMPDIR"))});
  std::vector<std::string> sockets;
  for (const std::string& prefix : prefixes) {
    const size_t slash = prefix.rfind('/');
    const std::string parent = prefix.substr(0, slash);
    const std::string beginning = prefix.substr(slash + 1);
    for (const std::string& name : NamesIn(parent)) {
      if (!absl::StartsWith(name, beginning)) continue;
      const std::string directory = absl::StrCat(parent, "/", name);
      // Nobody else can have put a socket there.
      if (!agent::CheckPrivateDirectory(directory).ok()) continue;
      sockets.push_back(absl::StrCat(directory, "/", agent::kSightSocketName));
    }
  }
  std::sort(sockets.begin(), sockets.end());
  return sockets;
}

absl::StatusOr<status::StatusPage> AskPage(Observer& observer) {
  MUSTER_ASSIGN_OR_RETURN(const InquiryAnswer answer,
                          observer.Ask({.kind = InquiryKind::kStatus}, kAgentPatience));
  return status::ParseStatusPage(answer.page);
}

// Several agents here may be of one job.
bool IsKnown(const std::vector<JobHere>& jobs, const std::string& name) {
  return std::any_of(jobs.begin(), jobs.end(), [&](const JobHere& other) {
    return other.page.ok() && other.page->job == name;
  });
}

absl::StatusOr<JobHere> ChooseJob(const std::string& name, const EnvironmentMap& environment) {
  std::vector<JobHere> jobs = FindJobsHere(environment);
  std::vector<std::string> names;
  for (JobHere& job : jobs) {
    if (!job.page.ok()) {
      if (name.empty() && jobs.size() == 1) return job.page.status();
      continue;
    }
    if (job.page->job == name || (name.empty() && jobs.size() == 1)) return std::move(job);
    names.push_back(job.page->job);
  }
  constexpr char kElsewhere[] =
      "; for a job that has no agent here give --rdzv_endpoint, or set MUSTER_ENDPOINT";
  if (names.empty()) {
    return absl::NotFoundError(absl::StrCat("no job of yours runs on this node", kElsewhere));
  }
  const std::string running = absl::StrJoin(names, ", ");
  if (name.empty()) {
    return absl::NotFoundError(
        absl::StrCat("several jobs of yours run here: name one of ", running));
  }
  return absl::NotFoundError(absl::StrCat("no job '", name, "' of yours runs on this node (",
                                          running, names.size() == 1 ? " does" : " do", ")",
                                          kElsewhere));
}

}  // namespace

void SayWait(const std::string& endpoint, absl::Duration patience) {
  log::Write(log::Level::kInfo, "waiting",
             absl::StrCat("waiting for the rendezvous at ", endpoint, " to answer (up to ",
                          absl::FormatDuration(patience), ", --timeout)"));
}

std::vector<JobHere> FindJobsHere(const EnvironmentMap& environment) {
  std::vector<JobHere> jobs;
  for (const std::string& socket : SocketsHere(environment)) {
    absl::StatusOr<UniqueFd> fd = ConnectTo(socket);
    if (!fd.ok()) continue;  // what its agent has left behind, or a job that ends
    const pid_t pid = PidBehind(*fd);
    SocketObserver observer(socket, *std::move(fd));
    JobHere job{.socket = socket, .pid = pid, .page = AskPage(observer)};
    if (!job.page.ok() || !IsKnown(jobs, job.page->job)) jobs.push_back(std::move(job));
  }
  return jobs;
}

absl::StatusOr<SightWay> FindWayHere(const std::string& job, const EnvironmentMap& environment) {
  MUSTER_ASSIGN_OR_RETURN(const JobHere here, ChooseJob(job, environment));
  MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(here.socket));
  SocketObserver observer(here.socket, std::move(fd));
  MUSTER_ASSIGN_OR_RETURN(const InquiryAnswer answer,
                          observer.Ask({.kind = InquiryKind::kWay}, kAgentPatience));
  MUSTER_ASSIGN_OR_RETURN(const status::WayToJob told, status::ParseWayToJob(answer.page));
  SightWay way{.job = told.job, .tls = told.tls, .authentication = told.authentication};
  if (told.endpoint.empty()) return way;
  MUSTER_ASSIGN_OR_RETURN(way.endpoint, ParseEndpoint(told.endpoint, 0));
  return way;
}

absl::StatusOr<rendezvous::GrpcLinkOptions> LinkOf(const SightWay& way, rendezvous::LinkRole role,
                                                   const Invocation& invocation) {
  rendezvous::GrpcLinkOptions link{
      .host = way.endpoint->host,
      .port = way.endpoint->port,
      .secret = PublicSecret(),
      .tls = way.tls && way.authentication ? TlsMode::kOn : TlsMode::kOff,
      .run_id = way.job.empty() ? kNoJob : way.job,
      .role = role,
      .node_name = HostName()};
  if (way.authentication) {
    MUSTER_ASSIGN_OR_RETURN(link.secret, LoadUserSecret(SecretSourcesIn(invocation.environment)));
  }
  std::random_device random;
  link.jitter_seed = random();
  link.incarnation = Incarnation(uint64_t{random()} << 32 | random() | 1);
  return link;
}

absl::StatusOr<std::unique_ptr<Observer>> ReachRendezvous(const SightWay& way,
                                                          const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(rendezvous::GrpcLinkOptions link,
                          LinkOf(way, rendezvous::LinkRole::kObserver, invocation));
  return std::make_unique<NetworkObserver>(std::move(link), ToString(*way.endpoint), way.patience);
}

absl::StatusOr<std::unique_ptr<Observer>> ReachJob(const SightWay& way,
                                                   const Invocation& invocation) {
  if (!way.endpoint) {
    MUSTER_ASSIGN_OR_RETURN(const JobHere job, ChooseJob(way.job, invocation.environment));
    MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(job.socket));
    return std::make_unique<SocketObserver>(job.socket, std::move(fd));
  }
  if (!way.job.empty()) return ReachRendezvous(way, invocation);
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Observer> any, ReachRendezvous(way, invocation));
  MUSTER_ASSIGN_OR_RETURN(const InquiryAnswer answer,
                          any->Ask({.kind = InquiryKind::kJobs}, TimeFor(InquiryKind::kJobs)));
  MUSTER_ASSIGN_OR_RETURN(const status::JobList list, status::ParseJobList(answer.page));
  if (list.jobs.size() != 1) {
    std::vector<std::string> names;
    for (const status::JobLine& job : list.jobs) names.push_back(job.job);
    return absl::NotFoundError(
        names.empty() ? absl::StrCat("no job of yours is known at ", ToString(*way.endpoint))
                      : absl::StrCat("several jobs of yours are known at ", ToString(*way.endpoint),
                                     ": name one of ", absl::StrJoin(names, ", ")));
  }
  SightWay to_it = way;
  to_it.job = list.jobs.front().job;
  return ReachRendezvous(to_it, invocation);
}

}  // namespace muster::launcher
