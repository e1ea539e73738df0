// Whether an SQLite write-ahead log has lost transactions that were durable. SQLite itself takes a
// damaged frame for the end of the log, as after a crash, and goes on without those behind it.
//
// Threads: pure.
// Source:  SQLite, "WAL-mode File Format" (sqlite.org/walformat.html).
#pragma once

#include <string>

namespace muster::rendezvous {

// `log` is the whole file. A transaction begins after the one before it is durable: where a frame
// is damaged and two transactions end there or behind it, the first of them was.
bool HasLostTransactions(const std::string& log);

}  // namespace muster::rendezvous
