// What becomes of the guardian of an agent that was killed, once nothing of that agent is left: it
// tells the rendezvous, so that the others need not wait for the node's lease.
#pragma once

namespace muster::launcher {

// Reads a DeathNotice of proto/agent.proto from standard input, and says it until the server has
// answered, for a few seconds at most. Returns the exit code, which nobody waits for.
int DeathNoticeCommand();

}  // namespace muster::launcher
