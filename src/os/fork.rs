//! What only the kernel can do, and only `unsafe` code can ask for: forks, what a child may do, descriptors that were
//! inherited. The one file that may say `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, Pid, fork, getppid};

/// What a child may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// What others wrote and the node's administrator named.
    Helper,
    /// The kubelet's binary when it only judges. Processor seconds, all its threads together; without isolation it has
    /// these alone.
    Preflight { cpu_seconds: u64, isolated: bool },
}

impl Confinement {
    /// Between fork and exec: system calls only.
    fn apply(self) -> io::Result<()> {
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0); // its memory holds credentials
        let Self::Preflight { cpu_seconds, isolated } = self else { return Ok(()) };
        let _ = setrlimit(Resource::RLIMIT_CPU, cpu_seconds, cpu_seconds);
        if !isolated {
            return Ok(());
        }
        nix::sys::prctl::set_no_new_privs()?;
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
        // Nothing that is mounted there comes out. What the node unmounts goes there, too: a judge keeps no volume busy.
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
        drop_capabilities()
    }
}

/// Leaves the capability to read files whoever owns them, and no other. A configuration may name a CA that is another user's
/// alone: a judge that cannot read it refuses what the kubelet takes.
fn drop_capabilities() -> io::Result<()> {
    const READ_SEARCH: libc::c_ulong = 2; // CAP_DAC_READ_SEARCH
    const RAISE: libc::c_ulong = 2; // PR_CAP_AMBIENT_RAISE
    const NONE: libc::c_ulong = 0;
    const VERSION_3: u32 = 0x2008_0522;
    const KEPT: u32 = 1 << READ_SEARCH;
    let told = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let (header, sets) = ([VERSION_3, 0], [KEPT, KEPT, KEPT, 0, 0, 0]);
    // With this root's programs have what is ambient, and not everything.
    let bits = (libc::SECBIT_NOROOT | libc::SECBIT_NOROOT_LOCKED).unsigned_abs();
    // SAFETY: the kernel reads a header of two words and twice three words of sets, which are there, and writes nothing.
    unsafe {
        told(libc::prctl(libc::PR_SET_SECUREBITS, libc::c_ulong::from(bits)).into())?;
        told(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()))?;
        told(libc::prctl(libc::PR_CAP_AMBIENT, RAISE, READ_SEARCH, NONE, NONE).into())
    }
}

/// A command whose process does not outlive us, and is so confined.
pub(crate) fn confined(mut command: Command, confinement: Confinement) -> Command {
    let parent = nix::unistd::getpid();
    let hook = move || {
        set_parent_death_signal(parent)?;
        confinement.apply()
    };
    // SAFETY: the hook runs between fork and exec and makes async-signal-safe system calls; it allocates nothing and
    // takes no lock.
    unsafe { command.pre_exec(hook) };
    command
}

/// Takes the child along when its parent dies, even by SIGKILL.
///
/// SIGKILL, not SIGTERM: a kubelet that hangs must not be there when the next supervisor starts another. It loses nothing
/// by it: on SIGTERM it would exit at once without draining. The signal is tied to the thread that forks, so children are
/// forked from the main thread only.
fn set_parent_death_signal(parent: Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before the line above took effect.
    if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// A program with its arguments and environment, ready for a child that must not allocate.
#[derive(Debug)]
pub(crate) struct Program {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    /// The program is the first argument, too.
    ///
    /// # Errors
    /// If there is a NUL in any of it.
    pub(crate) fn new<A: AsRef<OsStr>>(
        path: &Path,
        args: impl IntoIterator<Item = A>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let args = args.into_iter().map(|arg| CString::new(arg.as_ref().as_bytes()));
        let args = std::iter::once(Ok(path.clone())).chain(args).collect::<Result<_, _>>()?;
        let pair =
            |(name, value): (OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
        Ok(Self { path, args, env: env.into_iter().map(pair).collect::<Result<_, _>>()? })
    }
}

/// What a child has for its standard input, its standard error, and as descriptor 3; without one what we have, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streams<'a> {
    pub(crate) stdin: Option<BorrowedFd<'a>>,
    pub(crate) stderr: Option<BorrowedFd<'a>>,
    pub(crate) third: Option<BorrowedFd<'a>>,
}

/// A child that is on its way.
#[derive(Debug)]
pub(crate) struct Forked {
    pub(crate) pid: i32,
    /// Ends once the program is executed; before that it may give an errno in four bytes. Reads do not wait.
    pub(crate) executed: PipeReader,
}

/// Forks a child that executes a program, and waits for neither. It dies with us. A child with a group of its own is not
/// reached by a terminal's signals.
///
/// # Errors
/// If there is no process or pipe to be had.
pub(crate) fn fork_program(program: &Program, streams: Streams<'_>, own_group: bool) -> io::Result<Forked> {
    let (executed, writer) = io::pipe()?;
    set_nonblocking(&executed)?;
    // Above what the child's streams overwrite.
    let writer = fcntl(&writer, FcntlArg::F_DUPFD_CLOEXEC(10))?;
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args, env, parent) = (pointers(&program.args), pointers(&program.env), nix::unistd::getpid());
    // A signal between fork and exec would find our handlers in the child, and be lost.
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    // SAFETY: the child makes system calls only, and allocates nothing, until it is another program or ends.
    let forked = unsafe { fork() };
    if !matches!(forked, Ok(ForkResult::Child)) {
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    }
    match forked? {
        ForkResult::Parent { child } => {
            // SAFETY: fcntl has just given it, and nobody else has it.
            drop(unsafe { OwnedFd::from_raw_fd(writer) });
            Ok(Forked { pid: child.as_raw(), executed })
        }
        ForkResult::Child => {
            let prepared = prepare_child(parent, streams, own_group);
            let errno = match prepared {
                Ok(()) => {
                    // SAFETY: both arrays end with a null pointer, and their strings live until the exec.
                    unsafe { libc::execve(program.path.as_ptr(), args.as_ptr(), env.as_ptr()) };
                    nix::errno::Errno::last_raw()
                }
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            let bytes = errno.to_ne_bytes();
            // SAFETY: it writes four bytes that are there, and ends this process without running anything of the parent's.
            unsafe {
                libc::write(writer, bytes.as_ptr().cast(), bytes.len());
                libc::_exit(127)
            }
        }
    }
}

fn prepare_child(parent: Pid, streams: Streams<'_>, own_group: bool) -> io::Result<()> {
    set_parent_death_signal(parent)?;
    if own_group {
        nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    }
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: the default is no handler. SIGPIPE is ignored by Rust, and an exec would hand that on.
        unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }?;
    }
    SigSet::empty().thread_set_mask()?;
    for (stream, target) in [(streams.stdin, 0), (streams.stderr, 2), (streams.third, 3)] {
        let Some(stream) = stream.map(|stream| stream.as_raw_fd()) else { continue };
        // SAFETY: numbers alone; what it closes is the child's.
        if stream == target {
            unsafe { libc::fcntl(target, libc::F_SETFD, 0) };
        } else if unsafe { libc::dup2(stream, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// These signals are read from now on, and do nothing else. For a process whose other threads block all of them.
///
/// # Errors
/// As the system gives them: nothing is changed then.
pub(crate) fn take_signals(signals: &[Signal]) -> io::Result<SignalFd> {
    let taken: SigSet = signals.iter().copied().collect();
    let read = SignalFd::with_flags(&taken, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    // SAFETY: the default is no handler. Whoever started us may ignore it, and the kernel would not keep how children ended.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    taken.thread_block()?;
    Ok(read)
}

/// Has a copy of this process find something out and write it down; reads do not wait for it. For the time before there are other
/// threads.
///
/// # Errors
/// If there is no process or pipe to be had.
pub(crate) fn fork_question(answer: impl FnOnce() -> Vec<u8>) -> io::Result<PipeReader> {
    let (reader, mut writer): (PipeReader, PipeWriter) = io::pipe()?;
    set_nonblocking(&reader)?;
    let parent = nix::unistd::getpid();
    // SAFETY: no other thread exists, so no lock is held: the child may do what its parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => Ok(reader),
        ForkResult::Child => {
            drop(reader);
            let answer = std::panic::AssertUnwindSafe(|| set_parent_death_signal(parent).map(|()| answer()));
            let answer = std::panic::catch_unwind(answer);
            let _ = writer.write_all(&answer.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_default());
            // SAFETY: it ends the process without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
    }
}

/// What was inherited under this number, if it is open. It must be nobody else's.
pub(crate) fn inherited(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: a number that is not open gives an error, and is not used.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
    // SAFETY: it is open, and the caller says that nobody else has it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What this process was started with beside the standard streams is none of its children's. For the beginning of `main` only.
pub(crate) fn close_on_exec() {
    for fd in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let fd: Option<RawFd> = fd.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(fd) = fd.filter(|fd| *fd > 2) {
            // SAFETY: it is open: nobody else runs who could close it, and the directory is still being read.
            let _ = fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        }
    }
}

/// One arena of glibc's for all threads, which are few and allocate little: what each left unused in one of its own was 0.2 of
/// 1.7 MB. For the beginning of `main` only.
pub(crate) fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator; nobody else runs.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives memory that was freed back to the kernel: what a start took, a process that then waits for years need not keep.
pub(crate) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it concerns the allocator's own free memory alone.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Makes a descriptor's reads and writes come back at once.
///
/// # Errors
/// As the system gives them.
pub(crate) fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
    Ok(())
}
