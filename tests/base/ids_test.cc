#include "base/ids.h"

#include <catch2/catch.hpp>
#include <type_traits>
#include <unordered_set>

#include "base/invariant.h"

namespace rayctl {
namespace {

static_assert(!std::is_convertible_v<JobId, NodeId>, "a swapped argument must not compile");
static_assert(!std::is_convertible_v<std::uint64_t, JobId>, "a bare number is no id");
static_assert(!std::is_convertible_v<JobId, bool>, "an id must not turn into a number by way of bool");

TEST_CASE("an id of 0 names nothing", "[base]") {
  CHECK_FALSE(static_cast<bool>(JobId{}));
  CHECK(static_cast<bool>(JobId{1}));
}

TEST_CASE("ids order and hash by their number", "[base]") {
  CHECK(NodeId{1} < NodeId{2});
  CHECK(NodeId{7} == NodeId{7});
  const std::unordered_set<NodeId> set{NodeId{1}, NodeId{2}, NodeId{1}};
  CHECK(set.size() == 2);
}

TEST_CASE("an invariant that holds is silent", "[base]") { Invariant(true, "never printed"); }

}  // namespace
}  // namespace rayctl
