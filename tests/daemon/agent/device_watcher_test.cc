#include "daemon/agent/device_watcher.h"

#include <catch2/catch.hpp>

namespace rayctl::agent {
namespace {

const std::vector<device::Device> kDevices{{.vendor = "nvidia", .id = "GPU-aa11"},
                                           {.vendor = "nvidia", .id = "GPU-aa22"},
                                           {.vendor = "nvidia", .id = "MIG-33"},
                                           {.vendor = "amd", .id = "GPU-0000000000000001"},
                                           {.vendor = "amd", .id = "GPU-0000000000000002"}};

TEST_CASE("variables of visible devices leave what they name, in their order", "[devices]") {
  using Visible = std::vector<std::size_t>;
  const auto with = [](const std::vector<std::string>& environment) { return VisibleOf(kDevices, environment); };
  CHECK(with({}) == Visible{0, 1, 2, 3, 4});
  CHECK(with({"CUDA_VISIBLE_DEVICES=2,0"}) == Visible{2, 0, 3, 4});
  CHECK(with({"CUDA_VISIBLE_DEVICES="}) == Visible{3, 4});
  CHECK(with({"CUDA_VISIBLE_DEVICES=-1"}) == Visible{3, 4});
  CHECK(with({"CUDA_VISIBLE_DEVICES=1,7,0"}) == Visible{1, 3, 4});  // What follows a wrong one is not seen.
  CHECK(with({"CUDA_VISIBLE_DEVICES=1,1"}) == Visible{1, 3, 4});
  CHECK(with({"CUDA_VISIBLE_DEVICES=MIG-33,GPU-aa2"}) == Visible{2, 1, 3, 4});
  CHECK(with({"CUDA_VISIBLE_DEVICES=GPU-aa"}) == Visible{3, 4});  // Which of them?
  CHECK(with({"ROCR_VISIBLE_DEVICES=1"}) == Visible{0, 1, 2, 4});
  CHECK(with({"HIP_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=NoDevFiles"}) == Visible{3});
  CHECK(with({"CUDA_VISIBLE_DEVICES_OF_OTHERS=0"}) == Visible{0, 1, 2, 3, 4});
}

TEST_CASE("a machine without drivers offers nothing and is not asked again", "[devices]") {
  const NodeDevices found = FindDevices({.root = "/there-is-no-such-root", .nvml = ""}, {}, std::chrono::seconds(10));
  CHECK(found.finder == nullptr);
  CHECK(found.offered.empty());
  CHECK(found.remarks.empty());
  CHECK(found.accelerator_type.empty());
}

}  // namespace
}  // namespace rayctl::agent
