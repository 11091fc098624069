#include "cli/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/resources.h"
#include "base/units.h"
#include "cli/output.h"
#include "client/json_shapes.h"

namespace rayctl::cli {
namespace {

using ResourceMap = google::protobuf::Map<std::string, v1::NodeResource>;

std::string AmountOf(const std::string& name, double amount) {
  return name == kMemory ? FormatBytes(static_cast<std::int64_t>(amount)) : client::AmountText(amount);
}

std::string UsedOfTotal(const ResourceMap& resources, const std::string& name) {
  const auto it = resources.find(name);
  if (it == resources.end()) {
    return "0/0";
  }
  return fmt::format("{}/{}", AmountOf(name, it->second.used()), AmountOf(name, it->second.total()));
}

// Names in order, without those that have columns or lines of their own.
std::string OtherResources(const ResourceMap& resources) {
  std::map<std::string, std::string> others;
  for (const auto& [name, resource] : resources) {
    if (name != kCpu && name != kGpu && name != kMemory) {
      others[name] = UsedOfTotal(resources, name);
    }
  }
  std::string text;
  for (const auto& [name, amounts] : others) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, amounts);
  }
  return text;
}

template <class Map>
std::string Pairs(const Map& map) {
  const std::map<std::string, std::string> sorted(map.begin(), map.end());
  std::string text;
  for (const auto& [name, value] : sorted) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, value);
  }
  return text;
}

std::string Joined(const google::protobuf::RepeatedPtrField<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ",") + word;
  }
  return text;
}

WallTime At(const google::protobuf::Timestamp& time) {
  return WallTime(std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos()));
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

// How long a job has run, or ran.
std::string Runtime(const v1::JobStatus& status) {
  if (!status.has_started_at()) {
    return "-";
  }
  const WallTime end = status.has_ended_at() ? At(status.ended_at())
                                             : std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
  return FormatDuration(std::max(Duration(0), Duration(end - At(status.started_at()))));
}

// One "name: value" line a fact; facts without a value are left out.
std::string IndentedLines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines += fmt::format("  {}\n", Printable(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// As a shell would take it, so that a word with spaces or new lines is seen as one.
std::string CommandText(const google::protobuf::RepeatedPtrField<std::string>& words) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%^";
  std::string command;
  for (const std::string& word : words) {
    command += command.empty() ? "" : " ";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      command += word;
      continue;
    }
    command += '\'';
    for (const char c : word) {
      command += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    command += '\'';
  }
  return command;
}

class Facts {
 public:
  // A value of several lines stands indented under its name.
  Facts& Add(std::string_view name, std::string_view value) {
    while (value.ends_with('\n')) {
      value.remove_suffix(1);
    }
    if (value.find('\n') != std::string_view::npos) {
      text_ += fmt::format("{}:\n{}", name, IndentedLines(value));
    } else if (!value.empty()) {
      text_ += fmt::format("{}: {}\n", name, Printable(value));
    }
    return *this;
  }
  std::string Text() const { return text_; }

 private:
  std::string text_;
};

std::string StateWithReason(const v1::JobStatus& status) {
  const std::string reason = client::ReasonName(status.reason());
  return client::StateName(status.state()) + (reason.empty() ? "" : "/" + reason);
}

// "NVIDIA H100 80GB HBM3, 79.6 GiB, GPU-1f…, jobs 3,4; not lent now: …".
std::string DeviceText(const v1::NodeDevice& device) {
  std::string text = device.name().empty() ? device.vendor() : device.name();
  if (text.empty()) {
    return "counted by --num-gpus, not found";
  }
  if (device.memory_bytes() > 0) {
    text += ", " + FormatBytes(static_cast<std::int64_t>(device.memory_bytes()));
  }
  text += ", " + device.id();
  std::string jobs;
  for (const std::uint64_t job : device.jobs()) {
    jobs += fmt::format("{}{}", jobs.empty() ? "" : ",", job);
  }
  text += jobs.empty() ? "" : fmt::format(", job {}", jobs);
  return device.problem().empty() ? text : fmt::format("{}; not lent now: {}", text, device.problem());
}

}  // namespace

std::string StatusText(const v1::GetStatusResponse& status, bool verbose) {
  std::string text = fmt::format("Nodes: {}\nCPUs: {}\nGPUs: {}\n", status.workers_total(),
                                 UsedOfTotal(status.resources(), std::string(kCpu)),
                                 UsedOfTotal(status.resources(), std::string(kGpu)));
  if (status.resources().contains(std::string(kMemory))) {
    text += fmt::format("Memory: {}\n", UsedOfTotal(status.resources(), std::string(kMemory)));
  }
  if (const std::string others = OtherResources(status.resources()); !others.empty()) {
    text += fmt::format("Other resources: {}\n", Printable(others));
  }
  const bool all_ready = status.workers_ready() == status.workers_total() && status.workers_total() > 0;
  text += all_ready ? "Workers: Ready\n"
                    : fmt::format("Workers: {} of {} ready\n", status.workers_ready(), status.workers_total());
  if (!all_ready) {
    std::string states;
    for (const char* const state : {"alive", "suspect", "draining", "dead"}) {
      const auto count = status.nodes().find(state);
      if (count != status.nodes().end() && count->second > 0) {
        states += fmt::format("{}{} {}", states.empty() ? "" : ", ", count->second, state);
      }
    }
    text += states.empty() ? "" : fmt::format("Node states: {}\n", states);
  }
  std::string jobs;
  for (const char* const state :
       {"RUNNING", "STARTING", "RECOVERING", "STOPPING", "PREEMPTED", "QUEUED", "SUCCEEDED", "FAILED", "CANCELLED"}) {
    const auto count = status.jobs().find(state);
    if (count != status.jobs().end() && count->second > 0) {
      jobs += fmt::format("{}{} {}", jobs.empty() ? "" : ", ", count->second, state);
    }
  }
  text += fmt::format("Jobs: {}\n", jobs.empty() ? "none" : jobs);
  for (const v1::WaitingJob& job : status.waiting()) {
    text += fmt::format("Waiting: job {}{}: {}\n", job.id(), job.name().empty() ? "" : " " + Printable(job.name()),
                        Printable(job.reason()));
  }
  if (verbose) {
    text += fmt::format("Head: {}, version {}, up {}\n", status.address(), status.version(),
                        status.has_started_at()
                            ? FormatDuration(std::max(
                                  Duration(0), Duration(std::chrono::system_clock::now() - At(status.started_at()))))
                            : "-");
    text += "\n" + NodeTable(status.node_list());
  }
  return text;
}

std::string NodeTable(const google::protobuf::RepeatedPtrField<v1::Node>& nodes) {
  Table table({{"ID", true},
               {"NAME"},
               {"STATE"},
               {"ADDRESS"},
               {"CPUS", true},
               {"GPUS", true},
               {"MEMORY", true},
               {"OTHER"},
               {"LABELS"},
               {"REASON"}});
  for (const v1::Node& node : nodes) {
    const ResourceMap& resources = node.resources();
    table.AddRow({std::to_string(node.id()), node.name(), client::NodeStateName(node.state()), OrDash(node.address()),
                  UsedOfTotal(resources, std::string(kCpu)), UsedOfTotal(resources, std::string(kGpu)),
                  resources.contains(std::string(kMemory)) ? UsedOfTotal(resources, std::string(kMemory)) : "-",
                  OrDash(OtherResources(resources)), OrDash(Pairs(node.labels())), OrDash(node.reason())});
  }
  std::string text = table.Text();
  for (const v1::Node& node : nodes) {
    for (const v1::NodeDevice& device : node.devices()) {
      if (!device.problem().empty()) {
        text += fmt::format("{}: GPU {} is not lent now: {}\n", Printable(node.name()), device.index(),
                            Printable(device.problem()));
      }
    }
    for (const std::string& remark : node.remarks()) {
      text += fmt::format("{}: {}\n", node.name(), remark);
    }
  }
  return text;
}

std::string JobTable(const google::protobuf::RepeatedPtrField<v1::Job>& jobs) {
  Table table({{"ID", true},
               {"NAME"},
               {"KIND"},
               {"STATE"},
               {"USER"},
               {"WORKERS", true},
               {"ATTEMPT", true},
               {"FAILURES", true},
               {"RUNTIME", true},
               {"NODES"}});
  for (const v1::Job& job : jobs) {
    const v1::JobStatus& status = job.status();
    table.AddRow({std::to_string(job.id()), OrDash(job.spec().name()), client::KindName(job.spec().kind()),
                  StateWithReason(status), OrDash(status.user()),
                  std::to_string(std::max(1U, job.spec().scaling_config().num_workers())),
                  std::to_string(status.attempt()), std::to_string(status.failures()), Runtime(status),
                  OrDash(Joined(status.nodes()))});
  }
  return table.Text();
}

std::string WorkerTable(const google::protobuf::RepeatedPtrField<v1::Worker>& workers) {
  Table table({{"JOB", true},
               {"ATTEMPT", true},
               {"RANK", true},
               {"LOCAL RANK", true},
               {"NODE"},
               {"PID", true},
               {"STATE"},
               {"EXIT", true}});
  for (const v1::Worker& worker : workers) {
    std::string end = "-";
    if (worker.has_signal()) {
      end = fmt::format("signal {}", worker.signal());
    } else if (worker.has_exit_code()) {
      end = std::to_string(worker.exit_code());
    }
    table.AddRow({std::to_string(worker.job_id()), std::to_string(worker.attempt()), std::to_string(worker.rank()),
                  std::to_string(worker.local_rank()), OrDash(worker.node()),
                  worker.pid() > 0 ? std::to_string(worker.pid()) : "-", client::WorkerStateName(worker.state()), end});
  }
  return table.Text();
}

std::string TokenTable(const google::protobuf::RepeatedPtrField<v1::Token>& tokens) {
  Table table({{"NAME"}, {"ROLE"}, {"CREATED"}, {"EXPIRES"}});
  for (const v1::Token& token : tokens) {
    table.AddRow({token.name(), client::RoleName(token.role()),
                  token.has_created_at() ? client::TimeText(token.created_at()) : "-",
                  token.has_expires_at() ? client::TimeText(token.expires_at()) : "never"});
  }
  return table.Text();
}

std::string JobText(const v1::Job& job, const google::protobuf::RepeatedPtrField<v1::Worker>& workers) {
  const v1::JobSpec& spec = job.spec();
  const v1::JobStatus& status = job.status();
  Facts facts;
  facts.Add("id", std::to_string(job.id()))
      .Add("name", spec.name())
      .Add("kind", client::KindName(spec.kind()))
      .Add("state", StateWithReason(status))
      .Add("message", status.message())
      .Add("exit code", status.has_exit_code() ? std::to_string(status.exit_code()) : "")
      .Add("user", status.user())
      .Add("queue", spec.queue())
      .Add("priority", std::to_string(spec.priority()))
      .Add("attempt", std::to_string(status.attempt()))
      .Add("failures", fmt::format("{} ({} allowed)", status.failures(),
                                   spec.run_config().failure_config().max_failures() < 0
                                       ? "any number"
                                       : std::to_string(spec.run_config().failure_config().max_failures())))
      .Add("workers", std::to_string(std::max(1U, spec.scaling_config().num_workers())))
      .Add("nodes", Joined(status.nodes()))
      .Add("path", status.path())
      .Add("submitted", status.has_submitted_at() ? client::TimeText(status.submitted_at()) : "")
      .Add("started", status.has_started_at() ? client::TimeText(status.started_at()) : "")
      .Add("ended", status.has_ended_at() ? client::TimeText(status.ended_at()) : "")
      .Add("entrypoint", spec.entrypoint())
      .Add("command", CommandText(spec.argv()));
  std::map<std::string, double> amounts(spec.scaling_config().resources_per_worker().amounts().begin(),
                                        spec.scaling_config().resources_per_worker().amounts().end());
  std::string each;
  for (const auto& [name, amount] : amounts) {
    each += fmt::format("{}{} {}", each.empty() ? "" : ", ", name, AmountOf(name, amount));
  }
  facts.Add("resources of each worker", each);
  std::string text = facts.Text();
  if (!status.last_output().empty()) {
    text += status.has_failed_rank() ? fmt::format("last lines of rank {}:\n", status.failed_rank())
                                     : std::string("last lines:\n");
    text += IndentedLines(status.last_output());
  }
  return workers.empty() ? text : text + "\n" + WorkerTable(workers);
}

std::string NodeText(const v1::Node& node) {
  Facts facts;
  facts.Add("id", std::to_string(node.id()))
      .Add("name", node.name())
      .Add("address", node.address())
      .Add("state", client::NodeStateName(node.state()))
      .Add("reason", node.reason())
      .Add("labels", Pairs(node.labels()))
      .Add("version", node.version())
      .Add("last seen", node.has_last_seen_at() ? client::TimeText(node.last_seen_at()) : "");
  std::map<std::string, std::string> amounts;
  for (const auto& [name, resource] : node.resources()) {
    amounts[name] = UsedOfTotal(node.resources(), name);
  }
  for (const auto& [name, used] : amounts) {
    facts.Add(name, used);
  }
  for (const v1::NodeDevice& device : node.devices()) {
    facts.Add(fmt::format("GPU {}", device.index()), DeviceText(device));
  }
  for (const std::string& remark : node.remarks()) {
    facts.Add("remark", remark);
  }
  return facts.Text();
}

}  // namespace rayctl::cli
