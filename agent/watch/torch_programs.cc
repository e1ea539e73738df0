#include "agent/watch/torch_programs.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/machine/worker_sockets.h"
#include "agent/process/runtime_directory.h"
#include "agent/watch/torch_hook.h"
#include "proto/base/status_macros.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

constexpr size_t kNoteBytesMax = 4096;
constexpr int kNotesPerTurn = 64;

struct ReceivedNote {
  pid_t pid = 0;  // as this process knows the sender
  std::string text;
};

// Nothing if there is none to be read now.
std::optional<ReceivedNote> Receive(int fd) {
  std::array<char, kNoteBytesMax> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT);
  if (size < 0) return std::nullopt;
  ReceivedNote note{.text = std::string(bytes.data(), static_cast<size_t>(size))};
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(each), sizeof(sender));
    note.pid = sender.pid;
  }
  return note;
}

absl::StatusOr<UniqueFd> ListenAt(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > kSocketPathBytesMax) {
    return absl::UnavailableError(absl::StrCat("the path ", path, " is too long for a socket"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  unlink(path.c_str());
  if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at ", path, ": ", std::strerror(errno)));
  }
  return fd;
}

}  // namespace

TorchPrograms::TorchPrograms(asio::io_context& loop, bool tells_waits, Say say,
                             std::function<void()> on_met)
    : say_(std::move(say)),
      on_met_(std::move(on_met)),
      notes_(loop),
      timer_(loop),
      calls_(tells_waits) {}

absl::Status TorchPrograms::Prepare(const std::string& runtime_directory) {
  MUSTER_ASSIGN_OR_RETURN(std::string folder, WriteTorchHook(runtime_directory));
  std::string path = runtime_directory + "/torch.sock";
  MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, ListenAt(path));
  notes_.assign(fd.release());
  python_folder_ = std::move(folder);
  notes_socket_ = std::move(path);
  AwaitNote();
  return absl::OkStatus();
}

void TorchPrograms::StartRound(Round round, int num_nodes) {
  round_ = round;
  calls_.StartRound(num_nodes);
  Arm();
}

void TorchPrograms::AwaitNote() {
  notes_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [this](const asio::error_code& error) {
                      if (error) return;
                      TakeNotes();
                      AwaitNote();
                    });
}

void TorchPrograms::TakeNotes() {
  for (int i = 0; i < kNotesPerTurn; ++i) {
    const std::optional<ReceivedNote> received = Receive(notes_.native_handle());
    if (!received) break;
    absl::StatusOr<GroupNote> note = ReadGroupNote(received->text);
    if (!note.ok() || note->round != round_ || received->pid <= 0) continue;
    const MonoTime now = MonoNow();
    const std::optional<GroupCalls::Line> line =
        note->call ? calls_.Begin(received->pid, *std::move(note->call), now)
                   : calls_.Return(received->pid, now);
    if (line) say_(*line);
    if (!note->call) on_met_();
  }
  Arm();
}

void TorchPrograms::Arm() {
  timer_.cancel();
  const MonoTime deadline = calls_.NextDeadline();
  if (deadline.is_infinite()) return;
  timer_.expires_after(absl::ToChronoNanoseconds(deadline - MonoNow()));
  timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    Tell();
    Arm();
  });
}

void TorchPrograms::Tell() {
  const MonoTime now = MonoNow();
  std::map<int, std::vector<pid_t>> pids_by_port;
  for (const GroupCalls::Question& question : calls_.Questions(now)) {
    pids_by_port[question.port].push_back(question.pid);
  }
  std::map<pid_t, Connecting> answers;
  for (const auto& [port, pids] : pids_by_port) {
    const std::vector<Connecting> found = LookAtConnecting(pids, port);
    for (size_t i = 0; i < pids.size(); ++i) answers[pids[i]] = found[i];
  }
  for (const GroupCalls::Line& line : calls_.Tell(answers, now)) say_(line);
}

}  // namespace muster::agent
