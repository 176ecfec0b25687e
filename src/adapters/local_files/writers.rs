//! Files that somebody has open for writing. /proc knows, however long ago they were opened and whether or not anything is
//! written. What happens in another PID namespace above ours, or on another machine, it does not know.

use std::ffi::OsString;
use std::fs::{metadata, read_dir, read_link, read_to_string};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The access modes of open(2) but O_RDONLY.
const WRITES: u32 = 0o3;

/// The first of these files that a process has open for writing.
pub(super) fn written(files: &[PathBuf]) -> Option<&Path> {
    let known: Vec<(OsString, (u64, u64), &Path)> = files
        .iter()
        .filter_map(|path| Some((path.canonicalize().ok()?.file_name()?.to_owned(), identity(path)?, path.as_path())))
        .collect();
    let entries = |dir: &Path| read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let processes = entries(Path::new("/proc")).map(|entry| entry.path()).filter(|path| path.join("fd").exists());
    processes.flat_map(|process| entries(&process.join("fd")).map(move |fd| (process.clone(), fd))).find_map(
        |(process, fd)| {
            let info = read_to_string(process.join("fdinfo").join(fd.file_name())).ok()?;
            let field = |name: &str| info.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
            if u32::from_str_radix(field("flags:")?, 8).ok()? & WRITES == 0 {
                return None;
            }
            // To look at any other file may block, where its disk does. The kernel tells the inode since 5.14; before, a
            // writer that has it under another name (a hard link, a file mounted into a container) is not seen.
            let inode = field("ino:").and_then(|inode| inode.parse::<u64>().ok());
            let target = read_link(fd.path()).ok()?;
            let may_be = |name: &OsString, file: (u64, u64)| {
                inode.map_or_else(|| Some(name.as_os_str()) == target.file_name(), |inode| inode == file.1)
            };
            let mut alike = known.iter().filter(|(name, file, _)| may_be(name, *file));
            alike.find(|(_, file, _)| identity(&fd.path()) == Some(*file)).map(|found| found.2)
        },
    )
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};

    use super::*;

    /// Nobody writes to them. A process that another test forks has its copies of our descriptors, until it executes something.
    fn nobody_writes(files: &[PathBuf]) -> bool {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while written(files).is_some() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        written(files).is_none()
    }

    #[test]
    fn a_file_is_being_written_as_long_as_somebody_has_it_open_for_that() {
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("a"), dir.path().join("link")];
        fs::write(dir.path().join("b"), "x").unwrap();
        fs::write(&files[0], "x").unwrap();
        std::os::unix::fs::symlink("b", &files[1]).unwrap();
        assert_eq!(written(&files), None);
        let reader = File::open(&files[0]).unwrap();
        assert_eq!(written(&files), None, "a reader is no harm");
        for (path, options) in [(0, OpenOptions::new().append(true)), (1, OpenOptions::new().read(true).write(true))] {
            let writer = options.open(&files[path]).unwrap();
            assert_eq!(written(&files), Some(files[path].as_path()));
            drop(writer);
            assert!(nobody_writes(&files));
        }
        // It is the same file by another name, too, where the kernel tells.
        fs::hard_link(&files[0], dir.path().join("d")).unwrap();
        let writer = OpenOptions::new().append(true).open(dir.path().join("d")).unwrap();
        let tells = read_to_string("/proc/self/fdinfo/0").is_ok_and(|info| info.contains("ino:"));
        assert_eq!(written(&files), tells.then_some(files[0].as_path()));
        drop(writer);
        // One of the same name elsewhere is another file.
        fs::create_dir(dir.path().join("c")).unwrap();
        let _other = File::create(dir.path().join("c/a")).unwrap();
        assert!(nobody_writes(&files));
        drop(reader);
    }
}
