// What is found on machines of recorded shape (tests/worker/trees), and what is said of devices that are held or ill.
#include "worker/device/device.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/worker/temp_dir.h"

namespace rayctl::device {
namespace {

namespace fs = std::filesystem;

std::string Trees(const std::string& name) { return std::string(RAYCTL_TEST_TREES) + "/" + name; }

void Write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

// A root with the files of a tree: "== path" before the lines of a file, "=> path target" for a link.
class Root {
 public:
  explicit Root(const std::string& tree = "") {
    std::ifstream file(Trees(tree));
    REQUIRE((tree.empty() || file.is_open()));
    std::string path;
    std::string text;
    const auto finish = [&] {
      if (!path.empty()) {
        Write(path, text);
      }
      path.clear();
      text.clear();
    };
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("== ")) {
        finish();
        path = dir_.path() + "/" + line.substr(3);
      } else if (line.starts_with("=> ")) {
        finish();
        std::istringstream words(line.substr(3));
        std::string from;
        std::string to;
        words >> from >> to;
        fs::create_directories(fs::path(dir_.path() + "/" + from).parent_path());
        fs::create_symlink(to, dir_.path() + "/" + from);
      } else {
        text += line + "\n";
      }
    }
    finish();
  }
  const std::string& path() const { return dir_.path(); }
  Places places() const { return {.root = path(), .nvml = "", .environment = {}}; }

 private:
  TempDir dir_;
};

// The test library, which reads what it tells from a file.
class Nvml {
 public:
  explicit Nvml(const std::string& text) : file_(root_.path() + "/nvml") {
    Set(text);
    ::setenv("RAYCTL_TEST_NVML", file_.c_str(), 1);
  }
  void Set(const std::string& text) { Write(file_, text); }
  Places places() const { return {.root = root_.path(), .nvml = RAYCTL_TEST_NVML_LIBRARY, .environment = {}}; }
  const std::string& root() const { return root_.path(); }

 private:
  Root root_;
  std::string file_;
};

std::string Recorded(const std::string& name) {
  std::ifstream file(Trees(name));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> Ids(const Survey& survey) {
  std::vector<std::string> ids;
  for (const Device& device : survey.devices) {
    ids.push_back(device.id);
  }
  return ids;
}

const std::string kTwo = "gpu GPU-a 1b 1000 NVIDIA A100-SXM4-40GB\n";

TEST_CASE("a machine without drivers has no devices and nothing to remark", "[device]") {
  const Root root;
  Places places = root.places();
  places.nvml = "libthere-is-no-such-library.so.1";
  Finder finder(places);
  const Survey survey = finder.Find();
  CHECK(survey.devices.empty());
  CHECK(survey.remarks.empty());
  CHECK(finder.Look().empty());
}

TEST_CASE("a library that fails is a remark", "[device][nvml]") {
  const Nvml nvml("init 9\n");
  Finder finder(nvml.places());
  const Survey survey = finder.Find();
  CHECK(survey.devices.empty());
  REQUIRE(survey.remarks.size() == 1);
  CHECK(survey.remarks[0] ==
        "NVIDIA's library is there and does not work, so none of its devices are offered: Driver Not Loaded");
  CHECK(finder.Look().empty());
}

TEST_CASE("H100s, one of them cut by MIG and one in MIG mode with no instance", "[device][nvml]") {
  const Nvml nvml(Recorded("h100_mig.nvml"));
  Write(nvml.root() + "/sys/bus/pci/devices/0000:43:00.0/numa_node", "1\n");
  Finder finder(nvml.places());
  const Survey survey = finder.Find();
  CHECK(Ids(survey) == std::vector<std::string>{"GPU-11111111-aaaa-0000-0000-000000000000",
                                                "MIG-33333333-aaaa-0000-0000-000000000000",
                                                "MIG-44444444-aaaa-0000-0000-000000000000"});
  const Device& part = survey.devices.at(1);
  CHECK(part.vendor == "nvidia");
  CHECK(part.name == "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
  CHECK(part.memory_bytes == 10468982784);
  CHECK(part.parent_id == "GPU-22222222-aaaa-0000-0000-000000000000");
  CHECK(part.pci_address == "0000:43:00.0");
  CHECK(part.numa_node == 1);
  CHECK_FALSE(survey.devices.at(0).numa_node.has_value());
  CHECK(survey.devices.at(0).parent_id.empty());
  REQUIRE(survey.remarks.size() == 1);
  CHECK(survey.remarks[0].find("NVIDIA device 2 (GPU-55555555-aaaa-0000-0000-000000000000) is in MIG mode") == 0);
  for (const Condition& condition : finder.Look()) {
    CHECK(condition.problem.empty());
    CHECK(condition.holders.empty());
  }
  CHECK(AcceleratorType(survey.devices).empty());
  CHECK(AcceleratorType({survey.devices[0]}) == "H100");
  CHECK(AcceleratorType({survey.devices[1]}) == "H100-MIG-1g.10gb");
}

TEST_CASE("who holds a device is told for that device, the instance of a cut one included", "[device][nvml]") {
  const std::string text = Recorded("h100_mig.nvml");
  const std::string part = "MIG 3g.40gb\n";
  std::string held = text;
  held.insert(held.find(part) + part.size(), "process 4711\ngraphics 5\n");
  const Nvml nvml(held);
  Write(nvml.root() + "/proc/4711/comm", "python3\n");
  Finder finder(nvml.places());
  finder.Find();
  const std::vector<Condition> conditions = finder.Look();
  REQUIRE(conditions.size() == 3);
  CHECK(conditions[0].holders.empty());
  CHECK(conditions[1].holders.empty());
  REQUIRE(conditions[2].holders.size() == 1);
  CHECK(conditions[2].holders[0].pid == 4711);
  CHECK(conditions[2].holders[0].name == "python3");
}

TEST_CASE("more processes than there was room for are all told", "[device][nvml]") {
  std::string text = kTwo;
  for (int pid = 1; pid <= 200; ++pid) {
    text += "process " + std::to_string(pid) + "\n";
  }
  const Nvml nvml(text);
  Finder finder(nvml.places());
  finder.Find();
  CHECK(finder.Look().at(0).holders.size() == 200);
}

TEST_CASE("memory in use tells of a process that cannot be seen", "[device][nvml]") {
  Nvml nvml(kTwo + "used 536870912\n");
  Finder finder(nvml.places());
  finder.Find();
  const std::vector<Condition> unseen = finder.Look();
  REQUIRE(unseen.at(0).holders.size() == 1);
  CHECK(unseen[0].holders[0].pid == 0);
  nvml.Set(kTwo + "used 67108864\n");  // As an idle device has it.
  CHECK(finder.Look().at(0).holders.empty());
  nvml.Set(kTwo + "used 536870912\ngraphics 800\n");  // A display explains it, and holds no device that jobs want.
  CHECK(finder.Look().at(0).holders.empty());
  nvml.Set(kTwo + "process 9\n");
  Write(nvml.root() + "/proc/9/comm", "nvidia-cuda-mps\n");
  CHECK(finder.Look().at(0).holders.empty());
}

TEST_CASE("what the driver says of a device's health", "[device][nvml]") {
  Nvml nvml(kTwo);
  Finder finder(nvml.places());
  finder.Find();
  const auto problem = [&](const std::string& text) {
    nvml.Set(kTwo + text);
    return finder.Look().at(0).problem;
  };
  CHECK(problem("").empty());
  CHECK(problem("rows 1 0\n") ==
        "rows of its memory wait to be remapped; reset it by `nvidia-smi --gpu-reset -i 0000:1b:00.0`");
  CHECK(problem("rows 0 1\n") == "a row of its memory could not be remapped; it must be replaced");
  CHECK(problem("ecc 2\n").find("2 uncorrected memory errors") == 0);
  CHECK(problem("code 15\n") == "it has fallen off the bus; the machine must be restarted");
  CHECK(problem("code 16\n").find("it hangs; reset it") == 0);
  CHECK(problem("code 6\n").find("its driver does not tell who holds it: Not Found") == 0);
  CHECK(problem("").empty());
  CHECK(problem("xid 13\n").empty());  // The application's own.
  CHECK(problem("xid 13\nxid 79\n").find("its driver reported XID 79") == 0);
  CHECK(problem("xid 13\nxid 79\n").find("its driver reported XID 79") == 0);  // It does not go away by itself.
}

TEST_CASE("MI300X: the order is HIP's, and ids are what ROCr takes", "[device][kfd]") {
  const Root root("mi300x.tree");
  Finder finder(root.places());
  const Survey survey = finder.Find();
  REQUIRE(survey.devices.size() == 8);
  CHECK(survey.remarks.empty());
  CHECK(survey.devices[0].vendor == "amd");
  CHECK(survey.devices[0].id == "GPU-83a4b5c6d7e82222");
  CHECK(survey.devices[0].pci_address == "0000:38:00.0");
  CHECK(survey.devices[2].pci_address == "0000:22:00.0");
  CHECK(survey.devices[0].name == "AMD Instinct MI300X OAM");
  CHECK(survey.devices[0].memory_bytes == 206141652992);
  CHECK(survey.devices[0].numa_node == 0);
  CHECK(survey.devices[7].numa_node == 1);
  CHECK(survey.devices[0].parent_id.empty());
  CHECK(AcceleratorType(survey.devices) == "AMD-Instinct-MI300X-OAM");
  const std::vector<Condition> conditions = finder.Look();
  REQUIRE(conditions.size() == 8);
  REQUIRE(conditions[0].holders.size() == 1);  // By a queue: its memory is not yet used.
  CHECK(conditions[0].holders[0].pid == 4712);
  REQUIRE(conditions[1].holders.size() == 1);
  CHECK(conditions[1].holders[0].pid == 4711);
  CHECK(conditions[1].holders[0].name == "python3");
  for (std::size_t i = 2; i < conditions.size(); ++i) {
    CHECK(conditions[i].holders.empty());
  }
  Write(root.path() + "/sys/class/drm/renderD136/device/ras/umc_err_count", "ue: 2\nce: 0\n");
  CHECK(finder.Look().at(1).problem.find("2 uncorrected memory errors") == 0);
}

TEST_CASE("partitions of one MI300X share its unique id, so they are told apart by number", "[device][kfd]") {
  const Root root("mi300x_cpx.tree");
  Finder finder(root.places());
  const Survey survey = finder.Find();
  CHECK(Ids(survey) == std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6", "7"});
  CHECK(survey.devices.at(3).parent_id == "GPU-83a4b5c6d7e80000");
  CHECK(survey.devices.at(3).memory_bytes == 25753026560);
  CHECK(survey.devices.at(3).name == "AMD gfx942");
}

TEST_CASE("v5e: chips by /dev/accel, and who has one open", "[device][tpu]") {
  const Root root("v5e.tree");
  Finder finder(root.places());
  const Survey survey = finder.Find();
  CHECK(Ids(survey) == std::vector<std::string>{"0", "1", "2", "3"});
  CHECK(survey.devices.at(2).vendor == "tpu");
  CHECK(survey.devices.at(2).name == "TPU v5e");
  CHECK(survey.devices.at(2).memory_bytes == 16ULL << 30);
  CHECK(survey.devices.at(2).pci_address == "0000:00:06.0");
  CHECK_FALSE(survey.devices.at(2).numa_node.has_value());
  CHECK(AcceleratorType(survey.devices) == "TPU-V5LITEPOD");
  const std::vector<Condition> conditions = finder.Look();
  REQUIRE(conditions.size() == 4);
  CHECK(conditions[1].holders.empty());
  REQUIRE(conditions[2].holders.size() == 1);
  CHECK(conditions[2].holders[0].pid == 812);
  CHECK(conditions[2].holders[0].name == "python");
  fs::remove(root.path() + "/dev/accel3");
  CHECK(finder.Look().at(3).problem == "/dev/accel3 is gone");
}

TEST_CASE("v6e: chips by /dev/vfio, and nothing else that is bound to it", "[device][tpu]") {
  const Root root("v6e.tree");
  Finder finder(root.places());
  const Survey survey = finder.Find();
  CHECK(Ids(survey) == std::vector<std::string>{"0", "1", "2", "3"});
  CHECK(survey.devices.at(0).pci_address == "0000:00:06.0");
  CHECK(survey.devices.at(0).numa_node == 0);
  CHECK(AcceleratorType(survey.devices) == "TPU-V6E");
}

TEST_CASE("a variable names the type of TPU where its PCI id is not to be seen", "[device][tpu]") {
  const Root root;
  Write(root.path() + "/dev/accel0", "");
  Places places = root.places();
  CHECK(Finder(places).Find().devices.at(0).name == "TPU");
  places.environment = {"TPU_ACCELERATOR_TYPE=v5litepod-8"};
  CHECK(Finder(places).Find().devices.at(0).name == "TPU v5e");
}

TEST_CASE("accelerator types in Ray's words", "[device]") {
  const auto type = [](const std::string& vendor, const std::string& name) {
    return AcceleratorType({{.vendor = vendor, .name = name}});
  };
  CHECK(type("nvidia", "NVIDIA A100-SXM4-40GB") == "A100");
  CHECK(type("nvidia", "Tesla V100-SXM2-16GB") == "V100");
  CHECK(type("nvidia", "NVIDIA H200") == "H200");
  CHECK(type("nvidia", "NVIDIA L40S") == "L40S");
  CHECK(AcceleratorType({}).empty());
}

}  // namespace
}  // namespace rayctl::device
