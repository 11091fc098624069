#include <fmt/format.h>

#include <utility>

#include "daemon/rpc/translate.h"

namespace rayctl::rpc {

namespace v1 = ::rayctl::v1;

absl::StatusOr<OutputStream> FromProto(v1::OutputStream stream) {
  if (stream != v1::OUTPUT_STREAM_STDOUT && stream != v1::OUTPUT_STREAM_STDERR) {
    return absl::InvalidArgumentError(fmt::format("{} is no stream", static_cast<int>(stream)));
  }
  return static_cast<OutputStream>(stream);
}

v1::OutputStream ToProto(OutputStream stream) { return static_cast<v1::OutputStream>(stream); }

absl::StatusOr<link::OpenOutput> FromProto(const v1::OpenOutput& proto) {
  link::OpenOutput open{.transfer = {proto.transfer_id()},
                        .job = {proto.job_id()},
                        .attempt = proto.attempt(),
                        .ranks = {proto.ranks().begin(), proto.ranks().end()},
                        .follow = proto.follow(),
                        .by_time = proto.by_time(),
                        .grep = proto.grep()};
  if (proto.has_since()) {
    const absl::StatusOr<WallTime> since = FromProto(proto.since());
    if (!since.ok()) {
      return since.status();
    }
    open.since = *since;
  }
  for (const int stream : proto.streams()) {
    const absl::StatusOr<OutputStream> known = FromProto(static_cast<v1::OutputStream>(stream));
    if (!known.ok()) {
      return known.status();
    }
    open.streams.push_back(*known);
  }
  for (const v1::OutputPosition& position : proto.resume()) {
    const absl::StatusOr<OutputStream> stream = FromProto(position.stream());
    if (!stream.ok()) {
      return stream.status();
    }
    open.resume.push_back({position.rank(), *stream, position.offset()});
  }
  return open;
}

v1::OpenOutput ToProto(const link::OpenOutput& open) {
  v1::OpenOutput proto;
  proto.set_transfer_id(open.transfer.value);
  proto.set_job_id(open.job.value);
  proto.set_attempt(open.attempt);
  proto.mutable_ranks()->Assign(open.ranks.begin(), open.ranks.end());
  proto.set_follow(open.follow);
  proto.set_by_time(open.by_time);
  if (open.since) {
    *proto.mutable_since() = ToProto(*open.since);
  }
  proto.set_grep(open.grep);
  for (const OutputStream stream : open.streams) {
    proto.add_streams(ToProto(stream));
  }
  for (const link::OutputPosition& position : open.resume) {
    v1::OutputPosition& added = *proto.add_resume();
    added.set_attempt(open.attempt);
    added.set_rank(position.rank);
    added.set_stream(ToProto(position.stream));
    added.set_offset(position.offset);
  }
  return proto;
}

}  // namespace rayctl::rpc
