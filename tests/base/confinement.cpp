// The privileges of a process after it reduced them. Each test case runs in its own process.
#include "csrc/base/confinement.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tests/base/child.h"
#include "tests/catch.h"

namespace spikeforge::test {
namespace {

class Folder {
 public:
  Folder() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  ~Folder() { REQUIRE(std::system(("rm -rf '" + path_ + "'").c_str()) == 0); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/spikeforge_confined_XXXXXX";
};

bool writes(const std::string& path, int flags = O_CREAT) {
  const int file = ::open(path.c_str(), O_WRONLY | flags, 0600);
  if (file < 0) return false;
  const bool written = ::write(file, "x", 1) == 1;
  ::close(file);
  return written;
}

// Returns what confine() reports about this kernel, so that a kernel without the feature is distinguished from a
// failure.
bool has(bool Confinement::*means) {
  return holds_in_child([&] { return confine().*means; });
}

bool lacks_filter() {
  const bool lacks = !has(&Confinement::calls);
  if (lacks) WARN("this kernel has no seccomp");
  return lacks;
}

}  // namespace

TEST_CASE("a confined process writes no file, and reads as before") {
  if (!has(&Confinement::files)) {
    WARN("this kernel has neither Landlock nor seccomp");
    return;
  }
  const Folder folder;
  const std::string old = folder / "old";
  REQUIRE(writes(old));
  REQUIRE(writes(folder / "open"));
  CHECK(holds_in_child([&] {
    const int open = ::open((folder / "open").c_str(), O_WRONLY);
    if (!confine().files) return false;
    const bool cannot = !writes(folder / "new") && !writes(old, 0) && !writes(old, O_TRUNC) && !writes(old, O_APPEND) &&
                        ::unlink(old.c_str()) != 0 && ::rename(old.c_str(), (folder / "moved").c_str()) != 0 &&
                        ::link(old.c_str(), (folder / "linked").c_str()) != 0 &&
                        ::symlink(old.c_str(), (folder / "linked").c_str()) != 0 &&
                        ::mkdir((folder / "folder").c_str(), 0700) != 0 && ::rmdir(folder.path().c_str()) != 0 &&
                        ::mkfifo((folder / "pipe").c_str(), 0600) != 0 && ::truncate(old.c_str(), 0) != 0;
    char byte = 0;
    const int read = ::open(old.c_str(), O_RDONLY);
    return cannot && read >= 0 && ::read(read, &byte, 1) == 1 && byte == 'x' && ::write(open, "more", 4) == 4;
  }));
}

TEST_CASE("a confined process starts nothing, and reaches no other") {
  if (lacks_filter()) return;
  CHECK(holds_in_child([] {
    const pid_t parent = ::getppid();
    if (!confine().calls) return false;
    char name[] = "/bin/true";
    char* const arguments[] = {name, nullptr};
    ::execv(name, arguments);
    return ::fork() < 0 && std::system("true") != 0 && ::socket(AF_INET, SOCK_STREAM, 0) < 0 &&
           ::socket(AF_UNIX, SOCK_STREAM, 0) < 0 && ::kill(parent, SIGCONT) != 0 && ::kill(0, 0) != 0 &&
           ::kill(::getpid(), 0) == 0 && ::syscall(425 /* io_uring_setup */, 1, nullptr) < 0 &&
           ::syscall(437 /* openat2 */, AT_FDCWD, "/", nullptr, 0) < 0 && errno == ENOSYS;
  }));
}

// A permitted call fails too, but with another errno, because its argument is not a terminal or does not exist.
template <class Call> bool is_refused(const Call& call) {
  errno = 0;
  return call() < 0 && errno == EPERM;
}

TEST_CASE("a confined process changes no attribute of a file that it may read") {
  if (lacks_filter()) return;
  const Folder folder;
  const std::string path = folder / "file";
  REQUIRE(writes(path));
  for (const auto& writable : {std::vector<std::string>{}, {"/dev/null"}}) {
    CHECK(holds_in_child([&] {
      confine(writable);
      const int file = ::open(path.c_str(), O_RDONLY);
      int flags = 0;
      return file >= 0 && is_refused([&] { return ::fchmod(file, 0777); }) &&
             is_refused([&] { return ::chmod(path.c_str(), 0777); }) &&
             is_refused([&] { return ::fchown(file, ::getuid(), ::getgid()); }) &&
             is_refused([&] { return ::fsetxattr(file, "user.a", "b", 1, 0); }) &&
             is_refused([&] { return ::fremovexattr(file, "user.a"); }) &&
             is_refused([&] { return ::futimens(file, nullptr); }) &&
             is_refused([&] { return ::ioctl(file, FS_IOC_SETFLAGS, &flags); }) &&
             is_refused([&] { return ::ioctl(file, FS_IOC_FSSETXATTR, &flags); }) &&
             // the kernel reads its low half
             is_refused([&] { return ::syscall(SYS_ioctl, file, FS_IOC_SETFLAGS | 1L << 40, &flags); }) &&
             ::syscall(463 /* setxattrat */, file, "", 0, nullptr, nullptr, 0) < 0 && errno == ENOSYS &&
             ::syscall(469 /* file_setattr */, file, "", nullptr, 0, 0) < 0 && errno == ENOSYS &&
             ::syscall(429 /* move_mount */, file, "", file, "", 0) < 0 && errno == ENOSYS;
    }));
  }
}

TEST_CASE("a confined process cannot type into a terminal, or reach another process by open files") {
  if (lacks_filter()) return;
  CHECK(holds_in_child([] {
    const pid_t parent = ::getppid();
    int ends[2], waiting = 0;
    char letter = '!';
    if (::pipe(ends) != 0 || !confine().calls) return false;
    const rlimit none{};
    rlimit own{};
    return is_refused([&] { return ::ioctl(ends[0], TIOCSTI, &letter); }) &&
           is_refused([&] { return ::ioctl(ends[0], TIOCLINUX, &letter); }) &&
           is_refused([&] { return ::ioctl(ends[0], TIOCSCTTY, 0); }) &&
           is_refused([&] { return ::fcntl(ends[0], F_SETOWN, parent); }) &&
           is_refused([&] { return ::fcntl(ends[0], 10 /* F_SETSIG */, SIGUSR1); }) &&
           is_refused([&] { return ::syscall(SYS_prlimit64, parent, RLIMIT_NOFILE, &none, nullptr); }) &&
           is_refused([&] { return ::setpriority(PRIO_PROCESS, static_cast<id_t>(parent), 19); }) &&
           is_refused([&] { return ::syscall(SYS_sched_setaffinity, parent, 0, nullptr); }) &&
           is_refused([&] { return ::syscall(SYS_sched_setattr, parent, nullptr, 0); }) &&
           is_refused([&] { return ::syscall(SYS_shmat, -1, nullptr, 0); }) &&
           is_refused([&] { return ::syscall(SYS_shmctl, -1, 0, nullptr); }) &&
           is_refused([&] { return ::syscall(SYS_semop, -1, nullptr, 0); }) &&
           is_refused([&] { return ::syscall(SYS_semctl, -1, 0, 0, 0); }) &&
           is_refused([&] { return ::syscall(SYS_msgsnd, -1, nullptr, 0, 0); }) &&
           is_refused([&] { return ::syscall(SYS_msgctl, -1, 0, nullptr); }) &&
           is_refused([&] { return ::prctl(PR_SET_PDEATHSIG, 0); }) && ::ioctl(ends[0], FIONREAD, &waiting) == 0 &&
           ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && ::getrlimit(RLIMIT_NOFILE, &own) == 0;
  }));
}

TEST_CASE("a confined process computes: it has memory and threads, which are confined too") {
  const Folder folder;
  CHECK(holds_in_child([&] {
    const bool files = confine().files;
    bool wrote = true;
    std::thread([&] { wrote = writes(folder / "new"); }).join();
    std::string large(std::size_t{64} << 20, 'x');
    return large.back() == 'x' && wrote == !files;
  }));
}

// Landlock before version 3 does not restrict truncation in a writable folder, so the seccomp filter must.
TEST_CASE("a confined process empties no file that it has not opened to write") {
  if (lacks_filter()) return;
  const Folder folder;
  const std::string path = folder / "file";
  REQUIRE(writes(path));
  CHECK(holds_in_child([&] {
    confine({folder.path()});
    const auto opens = [&](int flags) { return ::open(path.c_str(), flags); };
    return is_refused([&] { return ::truncate(path.c_str(), 0); }) && is_refused([&] { return opens(O_TRUNC); }) &&
           is_refused([&] { return opens(O_TRUNC | O_ACCMODE); }) &&
           is_refused([&] { return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_TRUNC)); }) &&
           opens(O_RDONLY) >= 0 && opens(O_RDWR) >= 0 && opens(O_WRONLY | O_TRUNC) >= 0 && opens(O_RDWR | O_TRUNC) >= 0;
  }));
}

TEST_CASE("a confined process holds no lock, and leaves terminals as they are") {
  if (lacks_filter()) return;
  const Folder folder;
  const std::string path = folder / "file";
  REQUIRE(writes(path));
  CHECK(holds_in_child([&] {
    if (!confine().calls) return false;
    const int file = ::open(path.c_str(), O_RDONLY);
    struct flock lock {};
    char settings[256] = {};
    errno = 0;
    const bool asks = ::ioctl(file, TCGETS, settings) < 0 && errno == ENOTTY &&
                      ::ioctl(file, TIOCGWINSZ, settings) < 0 && errno == ENOTTY;
    return asks && is_refused([&] { return ::flock(file, LOCK_SH); }) &&
           is_refused([&] { return ::fcntl(file, F_SETLK, &lock); }) &&
           is_refused([&] { return ::fcntl(file, 37 /* F_OFD_SETLK */, &lock); }) &&
           is_refused([&] { return ::ioctl(file, TCSETS, settings); }) &&
           is_refused([&] { return ::ioctl(file, 0x402c542b /* TCSETS2 */, settings); }) &&
           is_refused([&] { return ::ioctl(file, TIOCSWINSZ, settings); }) && ::fcntl(file, F_GETLK, &lock) == 0;
  }));
}

TEST_CASE("writable folders stay writable, and nothing else does") {
  const Folder folder, other;
  const bool files = holds_in_child([&] { return confine({folder.path()}).files; });
  if (!files) WARN("this kernel has no Landlock");
  CHECK(holds_in_child([&] {
    confine({folder.path(), "/dev/null", "/no/such/folder"});
    return writes(folder / "new") && ::rename((folder / "new").c_str(), (folder / "moved").c_str()) == 0 &&
           ::unlink((folder / "moved").c_str()) == 0 && writes("/dev/null", 0) && writes(other / "new") == !files;
  }));
}

}  // namespace spikeforge::test
