// The error macros of the project; there are no others.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define MUSTER_CONCAT_INNER_(a, b) a##b
#define MUSTER_CONCAT_(a, b) MUSTER_CONCAT_INNER_(a, b)

// Returns the status of `expr` from the enclosing function unless it is ok.
#define MUSTER_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status muster_status_ = (expr); !muster_status_.ok()) { \
      return muster_status_;                                          \
    }                                                                 \
  } while (false)

// Declares `lhs` from a StatusOr, or returns its status.
#define MUSTER_ASSIGN_OR_RETURN(lhs, expr) \
  MUSTER_ASSIGN_OR_RETURN_(MUSTER_CONCAT_(muster_statusor_, __LINE__), lhs, expr)
#define MUSTER_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

// Ends the process when a programmer's assumption is broken. Never on user input or a peer's
// message.
#define MUSTER_CHECK(cond)                                                                 \
  do {                                                                                     \
    if (!(cond)) [[unlikely]] {                                                            \
      std::fprintf(stderr, "%s:%d: MUSTER_CHECK failed: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

#ifdef NDEBUG
#define MUSTER_DCHECK(cond) \
  do {                      \
    (void)sizeof(cond);     \
  } while (false)
#else
#define MUSTER_DCHECK(cond) MUSTER_CHECK(cond)
#endif
