#include "worker/shim/state_file.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/worker/temp_dir.h"
#include "worker/process/proc.h"

namespace rayctl::shim {
namespace {

local::ShimStateHeader Header() {
  local::ShimStateHeader header;
  header.set_version(1);
  header.set_shim_pid(::getpid());
  header.set_shim_start_ticks(process::StartTicks(::getpid()));
  header.set_job_id(7);
  header.set_boot_id(process::BootId());
  return header;
}

local::ShimStateRecord Record(std::uint32_t rank, std::uint64_t sequence) {
  local::ShimStateRecord record;
  record.set_rank(rank);
  record.set_sequence(sequence);
  return record;
}

TEST_CASE("what a shim wrote is what a reader finds, without a torn end", "[state_file]") {
  const TempDir dir;
  const std::string path = dir.path() + "/jobs/7/shim.state";
  {
    StateFile file = StateFile::Create(path, Header()).value();
    CHECK(absl::IsAlreadyExists(StateFile::Create(path, Header()).status()));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      local::ShimStateRecord starting = Record(rank, 0);
      starting.mutable_starting()->set_log_path("/l");
      REQUIRE(file.Append(starting).ok());
    }
    local::ShimStateRecord started = Record(1, 1);
    started.mutable_started()->set_pid(55);
    started.mutable_started()->set_pid_start_ticks(66);
    REQUIRE(file.Append(started).ok());
    local::ShimStateRecord exited = Record(2, 2);
    exited.mutable_exited()->set_signal(9);
    REQUIRE(file.Append(exited).ok());
    local::ShimStateRecord report = Record(1, 3);
    report.mutable_report()->set_number(1);
    REQUIRE(file.Append(report).ok());
  }
  const std::uintmax_t whole = std::filesystem::file_size(path);
  const ShimState state = ReadShimState(path).value();
  CHECK(state.header.job_id() == 7);
  CHECK(state.last_sequence == 3);
  CHECK(state.records.size() == 6);
  REQUIRE(state.ranks.size() == 3);
  CHECK(state.ranks[0].phase() == local::RANK_PHASE_STARTING);
  CHECK(state.ranks[1].phase() == local::RANK_PHASE_RUNNING);
  CHECK(state.ranks[1].pid() == 55);
  CHECK(state.ranks[1].pid_start_ticks() == 66);
  CHECK(state.ranks[2].phase() == local::RANK_PHASE_EXITED);
  CHECK(state.ranks[2].exit().signal() == 9);
  CHECK(ShimLives(state.header));
  local::ShimStateHeader other = state.header;
  other.set_shim_start_ticks(other.shim_start_ticks() + 1);
  CHECK_FALSE(ShimLives(other));
  other = state.header;
  other.set_boot_id("another boot");
  CHECK_FALSE(ShimLives(other));

  std::filesystem::resize_file(path, whole - 1);
  CHECK(ReadShimState(path).value().records.size() == 5);
  // A new shim for the same job keeps what the dead one left.
  StateFile next = StateFile::Create(path, Header()).value();
  CHECK(ReadShimState(path).value().records.empty());
  CHECK(ReadShimState(path + ".old").value().records.size() == 5);
  next.Remove();
  CHECK(absl::IsNotFound(ReadShimState(path).status()));
}

TEST_CASE("what is no state file is refused", "[state_file]") {
  const TempDir dir;
  const std::string path = dir.path() + "/shim.state";
  std::ofstream(path) << "something else entirely";
  CHECK(absl::IsInvalidArgument(ReadShimState(path).status()));
  std::ofstream(path, std::ios::trunc) << "";
  CHECK(absl::IsInvalidArgument(ReadShimState(path).status()));
  std::filesystem::remove(path);
  local::ShimStateHeader newer = Header();
  newer.set_version(2);
  { REQUIRE(StateFile::Create(path, newer).ok()); }
  CHECK(absl::IsInvalidArgument(ReadShimState(path).status()));
}

}  // namespace
}  // namespace rayctl::shim
