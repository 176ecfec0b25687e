//! System calls that a child may not make: a BPF program for seccomp, a list by number for the native ABI.
//!
//! Denied is denied with EPERM, so that a program says what it could not do. A list of what is allowed would break with the
//! next version of Go or libc; this one names what changes the machine itself or looks into other processes.

use nix::libc::{self, c_long, sock_filter};

/// `AUDIT_ARCH_*`, little endian; other architectures have no filter.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// Not in every libc of the crate.
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: c_long = 294;

/// The x32 ABI has x86_64's architecture and numbers of its own.
const X32_BIT: u32 = 0x4000_0000;

/// Denied to helpers and preflights: what changes the host itself. Of systemd's groups: @clock, @module, @reboot, @swap and
/// @raw-io, beside them acct. Of @clock, adjtimex and clock_adjtime are denied to preflights only: they
/// also read the clock's state.
const DENIED_ALWAYS: &[c_long] = &[
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_acct,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Denied to preflights beside it, which only judge a file: @mount, namespaces and the host name in them, @debug, BPF,
/// io_uring, @keyring, and slewing the clock (adjtimex, clock_adjtime).
const DENIED_IN_PREFLIGHT: &[c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_syslog,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// What `clone` may not be asked for: CLONE_NEW*.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16; // its lower half

const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();

/// For the kubelet's binary as a judge. Another ABI would be the way around it.
pub(super) fn for_preflight() -> Vec<sock_filter> {
    let mut program = check_abi(DENY);
    deny(&mut program, DENIED_ALWAYS);
    deny(&mut program, DENIED_IN_PREFLIGHT);
    program.extend([
        // Its flags are in memory, where no filter sees them; a libc without it goes on with clone.
        skip_next_unless(libc::BPF_JEQ, number(libc::SYS_clone3)),
        ret(libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()),
        skip_next_unless(libc::BPF_JEQ, number(libc::SYS_clone)),
        jump(1),
        ret(libc::SECCOMP_RET_ALLOW),
        load(FIRST_ARGUMENT),
        skip_next_unless(libc::BPF_JSET, NAMESPACES),
        ret(DENY),
        ret(libc::SECCOMP_RET_ALLOW),
    ]);
    program
}

/// For programs that others wrote, which may run containers, or be of another ABI.
pub(super) fn for_helpers() -> Vec<sock_filter> {
    let mut program = check_abi(libc::SECCOMP_RET_ALLOW);
    deny(&mut program, DENIED_ALWAYS);
    program.push(ret(libc::SECCOMP_RET_ALLOW));
    program
}

/// Numbers of another ABI mean something else: all of them get one answer.
fn check_abi(foreign: u32) -> Vec<sock_filter> {
    vec![
        load(ARCHITECTURE),
        skip_next_unless(libc::BPF_JEQ, ARCH),
        jump(1),
        ret(foreign),
        load(NUMBER),
        skip_next_unless(libc::BPF_JGE, X32_BIT),
        ret(foreign),
    ]
}

fn deny(program: &mut Vec<sock_filter>, numbers: &[c_long]) {
    for each in numbers {
        program.extend([skip_next_unless(libc::BPF_JEQ, number(*each)), ret(DENY)]);
    }
}

fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn instruction(code: u32, operand: u32, otherwise: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt: 0, jf: otherwise, k: operand }
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0)
}

/// The next instruction if this holds; else the one after it.
fn skip_next_unless(condition: u32, operand: u32) -> sock_filter {
    instruction(libc::BPF_JMP | condition | libc::BPF_K, operand, 1)
}

fn jump(over: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, over, 0)
}

fn ret(result: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, result, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer, by the rules of classic BPF for the few instructions that are used.
    fn answer(program: &[sock_filter], arch: u32, number: u32, first_argument: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let holds = match u32::from(code) {
                0x20 => {
                    value = match k {
                        0 => number,
                        4 => arch,
                        16 => first_argument,
                        other => panic!("offset {other}"),
                    };
                    at += 1;
                    continue;
                }
                0x05 => {
                    at += 1 + k as usize;
                    continue;
                }
                0x06 => return k,
                0x15 => value == k,
                0x35 => value >= k,
                0x45 => value & k != 0,
                other => panic!("instruction {other:#x}"),
            };
            at += 1 + usize::from(if holds { jt } else { jf });
        }
    }

    #[test]
    fn what_is_denied_and_what_is_not() {
        let (preflight, helpers) = (for_preflight(), for_helpers());
        let denied = |program: &[sock_filter], call| answer(program, ARCH, number(call), 0) == DENY;
        for call in DENIED_ALWAYS {
            assert!(denied(&preflight, *call) && denied(&helpers, *call), "{call}");
        }
        for call in DENIED_IN_PREFLIGHT {
            assert!(denied(&preflight, *call) && !denied(&helpers, *call), "{call}");
        }
        let needed = [
            libc::SYS_execve,
            libc::SYS_openat,
            libc::SYS_socket,
            libc::SYS_clone,
            libc::SYS_futex,
            libc::SYS_prctl,
            libc::SYS_seccomp,
            libc::SYS_exit_group,
        ];
        for call in needed {
            assert!(!denied(&preflight, call) && !denied(&helpers, call), "{call}");
        }
    }

    #[test]
    fn no_way_around_it() {
        let program = for_preflight();
        let clone = |flags: i32| answer(&program, ARCH, number(libc::SYS_clone), flags.cast_unsigned());
        assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD | libc::SIGCHLD), libc::SECCOMP_RET_ALLOW);
        for flag in [libc::CLONE_NEWNS, libc::CLONE_NEWUSER, libc::CLONE_NEWNET | libc::SIGCHLD] {
            assert_eq!(clone(flag), DENY);
        }
        assert_eq!(answer(&program, ARCH, number(libc::SYS_clone3), 0), libc::SECCOMP_RET_ERRNO + 38, "ENOSYS");
        // i386's exit has the number of a call that is allowed, and its init_module that of another.
        for (program, expected) in [(for_preflight(), DENY), (for_helpers(), libc::SECCOMP_RET_ALLOW)] {
            for call in [1, 128, number(libc::SYS_reboot)] {
                assert_eq!(answer(&program, 0x4000_0003, call, 0), expected, "i386");
            }
            assert_eq!(answer(&program, ARCH, X32_BIT + 59, 0), expected, "x32");
        }
    }
}
