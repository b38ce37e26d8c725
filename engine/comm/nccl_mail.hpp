// The memory that the members of a communicator of the stand-in of NCCL share: a file in memory, as large as the
// largest communicator needs. Internal to engine/comm.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/comm/nccl_calls.hpp"
#include "engine/device/cuda/recording_calls.hpp"

namespace lockstep::comm::nccl {

// What one member gives to another, in the memory of the first. Number n may be posted when n - 1 has been taken.
struct Letter {
  std::atomic<std::uint64_t> posted;  // the number of the last one; written after the other members
  std::atomic<std::uint64_t> taken;
  std::uint64_t bytes;
  device::cuda::DeviceBytes at;
};

enum class MemberState : std::uint32_t { absent, present, aborted };

struct Mail {
  static constexpr int max_members = 64;
  struct Member {
    std::atomic<MemberState> state;
    std::atomic<std::int32_t> device;
  };
  Member members[max_members];
  Letter letters[max_members][max_members];  // from, to
};

// An id names the file by its process and descriptor there.
struct MailId {
  std::int64_t process = 0;
  std::int32_t file = -1;
  std::int32_t number = 0;  // of the id within its process: descriptors are used again
};
MailId make_mail(int number);  // throws ResourceError
MailId mail_of(const UniqueId& id);
UniqueId unique_id_of(const MailId& mail);
Mail* open_mail(const MailId& id);  // throws ResourceError
void close_mail(Mail* mail) noexcept;

}  // namespace lockstep::comm::nccl
