#include "csrc/base/confinement.h"
#include "csrc/base/file_io.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace spikeforge {
namespace {

// --- Landlock: Documentation/userspace-api/landlock.rst of Linux. The constants are repeated here, since the headers
// of the build machine may be older than the kernel at run time.

constexpr long create_ruleset = 444, add_rule = 445, restrict_self = 446;  // the same on every architecture
constexpr unsigned ask_version = 1, path_beneath = 1;

struct Ruleset {
  std::uint64_t files, connections, scopes;
};
struct [[gnu::packed]] PathBeneath {
  std::uint64_t allowed;
  std::int32_t folder;
};

constexpr std::uint64_t execute = 1, write_file = 1 << 1, truncate_file = 1 << 14, ioctl_of_device = 1 << 15;
constexpr std::uint64_t remove_and_make = 0x1ff0;     // bits 4 to 12: folders, files, pipes, links
constexpr std::uint64_t to_another_folder = 1 << 13;  // rename and link

std::uint64_t writing_in(long version) {
  std::uint64_t rights = write_file | remove_and_make;
  if (version >= 2) rights |= to_another_folder;
  if (version >= 3) rights |= truncate_file;
  if (version >= 5) rights |= ioctl_of_device;
  return rights;
}

bool allow(const FileDescriptor& ruleset, const std::string& path, std::uint64_t rights) {
  const FileDescriptor file(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return true;  // the path does not exist
  const std::uint64_t of_files = write_file | truncate_file | ioctl_of_device;
  const PathBeneath rule{S_ISDIR(status.st_mode) ? rights : rights & of_files, file.get()};
  return ::syscall(add_rule, ruleset.get(), path_beneath, &rule, 0) == 0;
}

bool restrict_files(const std::vector<std::string>& writable) {
  const long version = ::syscall(create_ruleset, nullptr, 0, ask_version);
  if (version < 1) return false;
  const std::uint64_t writing = writing_in(version);
  Ruleset rules{.files = writing | execute, .connections = 0, .scopes = 0};
  std::size_t size = offsetof(Ruleset, connections);
  if (version >= 4) {
    rules.connections = 3;  // bind and connect of TCP
    size = offsetof(Ruleset, scopes);
  }
  if (version >= 6) {
    rules.scopes = 3;  // abstract sockets, and signals to other processes
    size = sizeof rules;
  }
  const FileDescriptor ruleset(static_cast<int>(::syscall(create_ruleset, &rules, size, 0)));
  if (!ruleset) return false;
  for (const std::string& path : writable)
    if (!allow(ruleset, path, writing)) return false;
  // Before version 3, Landlock allows a file to be truncated by its name; the filter of system calls forbids it in
  // every version.
  return ::syscall(restrict_self, ruleset.get(), 0) == 0;
}

// --- The filter of system calls: Documentation/userspace-api/seccomp_filter.rst

#if defined(__x86_64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t this_architecture = 0;
#endif

// Calls that reach other processes, start programs, reach other machines, or are for privileged programs.
constexpr int of_programs[] = {
#ifdef SYS_fork
    SYS_fork,   SYS_vfork,
#endif
    SYS_execve, SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev};
constexpr int of_sockets[] = {SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen};
constexpr int of_kernel[] = {SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key, SYS_keyctl};
constexpr int of_roots[] = {SYS_mount, SYS_umount2, SYS_pivot_root,       SYS_chroot,
                            SYS_setns, SYS_unshare, SYS_open_by_handle_at};
constexpr int of_modules[] = {
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load};
constexpr int of_machine[] = {SYS_reboot,       SYS_swapon,        SYS_swapoff,     SYS_acct,         SYS_quotactl,
                              SYS_settimeofday, SYS_clock_settime, SYS_sethostname, SYS_setdomainname};
constexpr int of_other_processes[] = {
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,  SYS_fanotify_init, SYS_setpriority,       SYS_ioprio_set,
    SYS_sched_setparam,  SYS_sched_setscheduler, SYS_sched_setattr, SYS_sched_setaffinity, SYS_migrate_pages};
constexpr int of_messages[] = {SYS_mq_open, SYS_mq_unlink,  SYS_shmget, SYS_shmat,  SYS_shmctl,
                               SYS_msgget,  SYS_msgsnd,     SYS_msgrcv, SYS_msgctl, SYS_semget,
                               SYS_semop,   SYS_semtimedop, SYS_semctl};
// Calls that change permissions, owners, times and other attributes. They need only a readable file, and Landlock does
// not cover them.
constexpr int of_attributes[] = {
#ifdef SYS_chmod
    SYS_chmod,     SYS_chown,     SYS_lchown,      SYS_utime,        SYS_utimes,      SYS_futimesat,
#endif
    SYS_fchmod,    SYS_fchown,    SYS_fchmodat,    SYS_fchownat,     SYS_utimensat,   SYS_setxattr,
    SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr};
// Calls that change files by name. (A descriptor that is already open for writing can still be written.)
constexpr int of_names[] = {
#ifdef SYS_unlink
    SYS_unlink,   SYS_rename,    SYS_link,   SYS_symlink,   SYS_mkdir,   SYS_rmdir,  SYS_mknod, SYS_creat,
#endif
#ifdef SYS_renameat
    SYS_renameat,
#endif
    SYS_unlinkat, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_mkdirat, SYS_mknodat};
// Calls whose arguments are pointers, which a filter cannot read, or that include the work of other calls. They are
// newer than the oldest supported Linux, so programs work without them if the calls report that they do not exist.
constexpr int not_there[] = {425, 426, 427,                           // io_uring
                             434, 424, 438,                           // pidfd: open, signal, get
                             440, 448,                                // process_madvise, process_mrelease
                             435,                                     // clone3
                             437,                                     // openat2
                             452,                                     // fchmodat2
                             463, 466, 469,                           // setxattrat, removexattrat, file_setattr
                             428, 429, 430, 431, 432, 433, 442, 467,  // of mounts
                             443};                                    // quotactl_fd
// ioctl: the owner of a descriptor's signals; and, by the second byte, changes that file systems make to files and
// folders that are open for reading (ext4, XFS, btrfs), and terminals. Queries of a terminal and of any descriptor
// remain allowed: no input can be sent to a terminal, and its settings cannot be changed.
constexpr std::uint32_t of_owners[] = {FIOSETOWN, SIOCSPGRP};
constexpr std::uint32_t kind_of_ioctl = 0xff00, of_terminals = 'T' << 8;
constexpr std::uint32_t of_file_systems[] = {'f' << 8, 'v' << 8, 'X' << 8, 0x94 << 8};
constexpr std::uint32_t asked_of_terminals[] = {TCGETS,   TIOCGWINSZ, TIOCGPGRP, TIOCOUTQ,
                                                FIONREAD, FIONBIO,    FIOCLEX,   FIONCLEX};
constexpr std::uint32_t of_descriptors[] = {F_SETOWN, 10 /* F_SETSIG */, 15 /* F_SETOWN_EX */, 1024 /* F_SETLEASE */};
// Locks, for which other processes wait.
constexpr std::uint32_t of_locks[] = {F_SETLK, F_SETLKW, 37 /* F_OFD_SETLK */, 38 /* F_OFD_SETLKW */};

class Filter {
 public:
  explicit Filter(bool names_too) {
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, this_architecture, 1, 0);
    refuse(EPERM);
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // x32, whose call numbers differ
    refuse(EPERM);
    for (const std::span<const int> calls : std::initializer_list<std::span<const int>>{
             of_programs, of_sockets, of_kernel, of_roots, of_modules, of_machine, of_other_processes, of_messages})
      refuse_calls(calls, EPERM);
    refuse_calls(not_there, ENOSYS);
    only(SYS_clone, 0, BPF_JSET, CLONE_THREAD);
    const auto self = static_cast<std::uint32_t>(::getpid());
    for (const int call : {SYS_kill, SYS_tgkill}) only(call, 0, BPF_JEQ, self);
    refuse_call(SYS_tkill, EPERM);
    for (const int call : {SYS_prlimit64, SYS_move_pages}) only(call, 0, BPF_JEQ, 0);   // only for this process
    never_one_of(SYS_prctl, 0, std::array<std::uint32_t, 1>{PR_SET_PDEATHSIG}, whole);  // it ends with its parent
    never_one_of(SYS_fcntl, 1, of_descriptors, whole);
    never_one_of(SYS_ioctl, 1, of_owners, whole);
    of_a_kind_only(SYS_ioctl, 1, kind_of_ioctl, of_terminals, asked_of_terminals);
    never_one_of(SYS_ioctl, 1, of_file_systems, kind_of_ioctl);
    refuse_calls(of_attributes, EPERM);
    // truncate() could empty a file.
    refuse_call(SYS_truncate, EPERM);
    empties_only_what_it_writes(SYS_openat, 2);
#ifdef SYS_open
    empties_only_what_it_writes(SYS_open, 1);
#endif
    if (names_too) {
      refuse_call(SYS_flock, EPERM);
      never_one_of(SYS_fcntl, 1, of_locks, whole);
      refuse_calls(of_names, EPERM);
      constexpr std::uint32_t writes = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;
      never(SYS_openat, 2, writes);
#ifdef SYS_open
      never(SYS_open, 1, writes);
#endif
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  bool install() {
    if (this_architecture == 0) return false;
    const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  static constexpr std::uint32_t whole = 0xffffffff;

  void add(unsigned code, std::uint32_t value, unsigned if_true = 0, unsigned if_false = 0) {
    code_.push_back({static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(if_true),
                     static_cast<std::uint8_t>(if_false), value});
  }
  void load(unsigned argument) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * argument));
  }
  void refuse(int error) { add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)); }
  void refuse_call(int call, int error) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1);
    refuse(error);
  }
  void refuse_calls(std::span<const int> calls, int error) {
    for (const int call : calls) refuse_call(call, error);
  }
  // Allows the call only if, or only if not, the comparison of the low half of its argument with the value is true.
  void only(int call, unsigned argument, unsigned compare, std::uint32_t value) {
    decide(call, argument, compare, value, 1, 0);
  }
  void never(int call, unsigned argument, std::uint32_t bits) { decide(call, argument, BPF_JSET, bits, 0, 1); }
  // Compares the low half of the argument; the kernel ignores the high half too.
  void never_one_of(int call, unsigned argument, std::span<const std::uint32_t> values, std::uint32_t mask) {
    const auto count = static_cast<unsigned>(values.size());
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 3 + 2 * count);
    load(argument);
    add(BPF_ALU | BPF_AND | BPF_K, mask);
    for (const std::uint32_t value : values) {
      add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
      refuse(EPERM);
    }
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  }
  // Allows only the listed values among the values of this kind.
  void of_a_kind_only(int call, unsigned argument, std::uint32_t mask, std::uint32_t kind,
                      std::span<const std::uint32_t> values) {
    const auto count = static_cast<unsigned>(values.size());
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 6 + count);
    load(argument);
    add(BPF_ALU | BPF_AND | BPF_K, mask);
    add(BPF_JMP | BPF_JEQ | BPF_K, kind, 0, 2 + count);
    load(argument);
    for (unsigned i = 0; i < count; ++i) add(BPF_JMP | BPF_JEQ | BPF_K, values[i], count - i, 0);
    refuse(EPERM);
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  }
  // Allows O_TRUNC only together with write access.
  void empties_only_what_it_writes(int call, unsigned flags) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 7);
    load(flags);
    add(BPF_JMP | BPF_JSET | BPF_K, O_TRUNC, 0, 4);
    add(BPF_ALU | BPF_AND | BPF_K, O_ACCMODE);
    add(BPF_JMP | BPF_JEQ | BPF_K, O_WRONLY, 2, 0);
    add(BPF_JMP | BPF_JEQ | BPF_K, O_RDWR, 1, 0);
    refuse(EPERM);
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  }
  void decide(int call, unsigned argument, unsigned compare, std::uint32_t value, unsigned if_true, unsigned if_false) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 4);
    load(argument);
    add(BPF_JMP | compare | BPF_K, value, if_true, if_false);
    refuse(EPERM);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }

  std::vector<sock_filter> code_;
};

}  // namespace

Confinement confine(const std::vector<std::string>& writable) {
  Confinement in_force;
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // the kernel would write a core file regardless of the restrictions
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return in_force;
  const bool by_landlock = restrict_files(writable);
  const bool names_too = writable.empty();
  in_force.calls = Filter(names_too).install();
  in_force.files = by_landlock || (in_force.calls && names_too);
  return in_force;
}

}  // namespace spikeforge
