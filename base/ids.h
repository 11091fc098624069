#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace rayctl {

// A number that names one kind of thing, so that a swapped argument does not compile. 0 names nothing.
template <class Tag>
struct Id {
  std::uint64_t value = 0;

  friend auto operator<=>(const Id&, const Id&) = default;
  explicit operator bool() const { return value != 0; }
};

using NodeId = Id<struct NodeTag>;
using JobId = Id<struct JobTag>;
using StreamId = Id<struct StreamTag>;      // One agent connection in the head's process; never journaled.
using CallId = Id<struct CallTag>;          // One client call that waits for an answer; never journaled.
using TransferId = Id<struct TransferTag>;  // One reading of a job's output; never journaled.
using TokenId = Id<struct TokenTag>;

using AttemptNumber = std::uint32_t;  // From 0.
using Rank = std::uint32_t;           // From 0.
using Incarnation = std::uint64_t;    // The number the head gives an agent at each registration, from 1.

}  // namespace rayctl

template <class Tag>
struct std::hash<rayctl::Id<Tag>> {
  std::size_t operator()(const rayctl::Id<Tag>& id) const noexcept { return std::hash<std::uint64_t>{}(id.value); }
};
