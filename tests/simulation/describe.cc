#include "tests/simulation/describe.h"

#include "fmt/format.h"

namespace rayctl::sim {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string Text(const link::RankFacts& facts) {
  std::string text = fmt::format("{}.{}.{} {} pid {}", facts.key.job.value, facts.key.attempt, facts.key.rank,
                                 Name(facts.state), facts.pid);
  if (facts.state == WorkerState::kExited) {
    text +=
        fmt::format(" code {} signal {}{}{}{}", facts.end.exit_code, facts.end.signal, facts.end.lost ? " lost" : "",
                    facts.end.start_failed ? " start failed" : "", facts.end.stop_requested ? " stop requested" : "");
  }
  return text;
}

std::string Text(const link::AgentToHead& message) {
  const std::string body = std::visit(Overloaded{
                                          [](const link::Register& reg) {
                                            std::string text = fmt::format("register boot {}", reg.boot_id);
                                            for (const link::RankFacts& facts : reg.ranks) {
                                              text += fmt::format(" [{}]", Text(facts));
                                            }
                                            return text;
                                          },
                                          [](const link::Heartbeat&) { return std::string("heartbeat"); },
                                          [](const link::RankChanged& changed) { return Text(changed.facts); },
                                          [](const link::DevicesChanged& changed) {
                                            std::string text = "devices";
                                            for (const link::Device& device : changed.devices) {
                                              text += fmt::format(" [{}]", device.problem);
                                            }
                                            return text;
                                          },
                                          [](const link::Goodbye& bye) { return fmt::format("goodbye: {}", bye.why); },
                                      },
                                      message.body);
  return fmt::format("inc {} seq {} {}", message.incarnation, message.sequence, body);
}

std::string Text(const link::StartGroup& start) {
  std::string text = fmt::format("start {}.{} of {}:", start.job.value, start.attempt, start.world_size);
  for (const link::RankAssignment& rank : start.ranks) {
    text += fmt::format(" {}", rank.rank);
  }
  return text;
}

std::string Text(const link::HeadToAgent& message) {
  const std::string body = std::visit(
      Overloaded{
          [](const link::Registered& reg) {
            std::string text = "registered";
            for (const link::StartGroup& group : reg.groups) {
              text += fmt::format(" [{}]", Text(group));
            }
            for (const JobId job : reg.kept_jobs) {
              text += fmt::format(" keep {}", job.value);
            }
            return text;
          },
          [](const link::StartGroup& start) { return Text(start); },
          [](const link::StopGroup& stop) {
            return fmt::format("stop {}.{} grace {} ns: {}", stop.job.value, stop.attempt, stop.grace.count(),
                               stop.why);
          },
          [](const link::ForgetRanks& forget) { return fmt::format("forget {}.{}", forget.job.value, forget.attempt); },
          [](const link::ForgetJob& forget) { return fmt::format("forget job {}", forget.job.value); },
          [](const link::OpenOutput& open) { return fmt::format("open output {}", open.transfer.value); },
          [](const link::CloseOutput& close) { return fmt::format("close output {}", close.transfer.value); },
          [](const link::LeaveCluster& leave) { return fmt::format("leave: {}", leave.why); },
          [](const link::HeartbeatHeard&) { return std::string("heartbeat heard"); },
      },
      message.body);
  return fmt::format("inc {} seq {} {}", message.incarnation, message.sequence, body);
}

std::string Text(const local::RankExited& exited) {
  return fmt::format("exited code {} signal {}{}{}", exited.exit_code(), exited.signal(),
                     exited.stop_requested() ? " stop requested" : "", exited.start_failed() ? " start failed" : "");
}

std::string Text(const local::RankId& id) {
  return fmt::format("{}.{}.{} seq {}", id.job_id(), id.attempt(), id.rank(), id.sequence());
}

std::string Text(const local::AgentToShim& message) {
  std::string body = fmt::format("body {}", static_cast<int>(message.body_case()));
  if (message.has_hello()) {
    body = fmt::format("hello replay after {}", message.hello().replay_after());
  } else if (message.has_start()) {
    body = fmt::format("start {} ranks", message.start().ranks_size());
  } else if (message.has_stop()) {
    body = fmt::format("stop grace {} ms", message.stop().grace_millis());
  } else if (message.has_ack()) {
    body = fmt::format("ack {}", message.ack().sequence());
  } else if (message.has_release()) {
    body = "release";
  }
  return fmt::format("{} {}", Text(message.id()), body);
}

std::string Text(const local::ShimToAgent& message) {
  std::string body = fmt::format("body {}", static_cast<int>(message.body_case()));
  if (message.has_hello()) {
    body = fmt::format("hello pid {} ranks {}", message.hello().shim_pid(), message.hello().ranks_size());
  } else if (message.has_started()) {
    body = fmt::format("started pid {}", message.started().pid());
  } else if (message.has_exited()) {
    body = Text(message.exited());
  }
  return fmt::format("{} {}", Text(message.id()), body);
}

std::string Text(const shim::RankRef& ref) { return fmt::format("{}.{}", ref.attempt, ref.rank); }

}  // namespace

std::string Describe(const head::Event& event) {
  return std::visit(
      Overloaded{
          [](const head::SubmitJob& submit) { return fmt::format("submit {}", submit.request_id); },
          [](const head::CancelJob& cancel) { return fmt::format("cancel {}", cancel.job.value); },
          [](const head::CreateToken& create) { return fmt::format("create token {}", create.name); },
          [](const head::RevokeToken& revoke) { return fmt::format("revoke token {}", revoke.name); },
          [](const head::JoinNode& join) { return fmt::format("join {} {}", join.node_name, join.known.value); },
          [](const head::AgentMessage& message) {
            return fmt::format("node {} stream {} {}", message.node.value, message.stream.value, Text(message.message));
          },
          [](const head::AgentClosed& closed) { return fmt::format("stream {} closed", closed.stream.value); },
          [](const head::RelayOutput& relay) { return fmt::format("relay output to node {}", relay.node.value); },
          [](const head::Tick&) { return std::string("tick"); },
          [](const head::StopCluster& stop) { return fmt::format("stop cluster: {}", stop.why); },
          [](const auto&) { return std::string("event"); },
      },
      event);
}

std::string Describe(const head::Effect& effect) {
  return std::visit(
      Overloaded{
          [](const head::Put& put) {
            if (const auto* job = std::get_if<head::JobRecord>(&put.record)) {
              std::string text = fmt::format("put job {} {} {} attempt {}{} failures {}", job->id.value,
                                             Name(job->state), Name(job->reason), job->attempt.number,
                                             job->attempt.ended ? " ended" : "", job->failures);
              for (const head::RankRecord& rank : job->attempt.ranks) {
                text += fmt::format(" {}@{}", Name(rank.state), rank.node.value);
              }
              return text;
            }
            if (const auto* node = std::get_if<head::NodeRecord>(&put.record)) {
              return fmt::format("put node {} {} {}", node->id.value, Name(node->state), node->reason);
            }
            return std::string("put");
          },
          [](const head::Erase& erase) { return fmt::format("erase {}", erase.key.id); },
          [](const head::Reply& reply) {
            return fmt::format("reply {} {}", reply.call.value,
                               reply.answer.ok() ? "ok" : reply.answer.status().ToString());
          },
          [](const head::Send& send) { return fmt::format("send {} {}", send.stream.value, Text(send.message)); },
          [](const head::CloseStream& close) {
            return fmt::format("close stream {}: {}", close.stream.value, close.why.ToString());
          },
          [](const head::JobChanged& changed) { return fmt::format("job {} changed", changed.job.value); },
          [](const head::ClusterStopped&) { return std::string("cluster stopped"); },
          [](const auto&) { return std::string("effect"); },
      },
      effect);
}

std::string Describe(const agent::Event& event) {
  return std::visit(
      Overloaded{
          [](const agent::ShimFound& found) {
            return fmt::format("shim {} found {} ranks {}", found.job.value, found.living ? "living" : "dead",
                               found.ranks.size());
          },
          [](const agent::ShimsScanned&) { return std::string("shims scanned"); },
          [](const agent::HeadConnected&) { return std::string("head connected"); },
          [](const agent::HeadClosed& closed) { return fmt::format("head closed: {}", closed.why.ToString()); },
          [](const agent::HeadMessage& message) { return fmt::format("head: {}", Text(message.message)); },
          [](const agent::ShimMessage& message) {
            return fmt::format("shim {}: {}", message.job.value, Text(message.message));
          },
          [](const agent::ShimClosed& closed) {
            return fmt::format("shim {} closed ranks {}: {}", closed.job.value, closed.ranks.size(), closed.why);
          },
          [](const agent::PortChecked& checked) {
            return fmt::format("port of {}.{} {}", checked.key.job.value, checked.key.attempt,
                               checked.free ? "free" : "taken");
          },
          [](const agent::WorkDirPrepared& prepared) {
            return fmt::format("work of {}: {}", prepared.job.value, prepared.status.ToString());
          },
          [](const agent::DevicesLooked& looked) {
            std::size_t holders = 0;
            for (const agent::DeviceFacts& facts : looked.facts) {
              holders += facts.holders.size();
            }
            return fmt::format("look {} at devices: {} holders", looked.look, holders);
          },
          [](const agent::Tick&) { return std::string("tick"); },
          [](const agent::Stop& stop) { return fmt::format("stop: {}", stop.why); },
          [](const auto&) { return std::string("event"); },
      },
      event);
}

std::string Describe(const shim::Event& event) {
  return std::visit(
      Overloaded{
          [](const shim::AgentConnected&) { return std::string("agent connected"); },
          [](const shim::AgentClosed&) { return std::string("agent closed"); },
          [](const shim::AgentSaid& said) { return fmt::format("agent: {}", Text(said.message)); },
          [](const shim::Spawned& spawned) {
            return fmt::format("spawned {} pid {}", Text(spawned.rank), spawned.pid);
          },
          [](const shim::SpawnFailed& failed) { return fmt::format("spawn of {} failed", Text(failed.rank)); },
          [](const shim::Exited& exited) {
            return fmt::format("exited {} code {} signal {}", Text(exited.rank), exited.exit_code, exited.signal);
          },
          [](const shim::Tick&) { return std::string("tick"); },
          [](const auto&) { return std::string("event"); },
      },
      event);
}

}  // namespace rayctl::sim
