#include "engine/comm/nccl_mail.hpp"

#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm::nccl {

MailId make_mail(int number) {
  const int file = ::memfd_create("stand-in of a communicator", MFD_CLOEXEC);
  if (file < 0) throw resource_error("a file for a communicator", errno);
  if (::ftruncate(file, sizeof(Mail)) != 0) {
    const int reason = errno;
    ::close(file);
    throw resource_error("a file for a communicator", reason);
  }
  return {::getpid(), file, number};
}

MailId mail_of(const UniqueId& id) {
  MailId mail;
  std::memcpy(&mail, id.bytes, sizeof mail);
  return mail;
}

UniqueId unique_id_of(const MailId& mail) {
  UniqueId id{};
  static_assert(sizeof mail <= sizeof id.bytes);
  std::memcpy(id.bytes, &mail, sizeof mail);
  return id;
}

Mail* open_mail(const MailId& id) {
  std::byte* const memory = device::cuda::map_allocation({id.process, id.file, sizeof(Mail)});
  if (memory == nullptr)
    throw ResourceError("the memory of a communicator is gone", "keep the process alive that has made its id");
  return reinterpret_cast<Mail*>(memory);
}

void close_mail(Mail* mail) noexcept { ::munmap(mail, sizeof(Mail)); }

}  // namespace lockstep::comm::nccl
