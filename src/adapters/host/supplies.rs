//! What a node has left, measured as the kubelet does for its eviction thresholds, without asking it.

use std::path::{Path, PathBuf};

use kubelet_config::readmission::{Supplies, Supply};
use nix::sys::statvfs::{Statvfs, statvfs};

/// Cgroups of memory: under version 1 of cgroups, and under version 2.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// The cgroup of all pods, by cgroup driver.
const PODS: [&str; 2] = ["kubepods", "kubepods.slice"];

/// Of the node whose kubelet has this `--root-dir`.
pub(super) fn measure(root_dir: &Path) -> Supplies {
    let mut supplies = Supplies::new();
    let mut add = |name: &str, supply: Option<Supply>| {
        if let Some(supply) = supply {
            supplies.insert(name.to_owned(), supply);
        }
    };
    let meminfo = read(Path::new("/proc/meminfo"));
    let used = working_set(Path::new(CGROUPS[0])).or_else(|| root_working_set(&read(ROOT_STAT.as_ref())));
    add("memory.available", memory(&meminfo, used));
    let pods = CGROUPS.iter().flat_map(|base| PODS.map(|name| Path::new(base).join(name)));
    let used = pods.into_iter().find_map(|cgroup| working_set(&cgroup));
    add("allocatableMemory.available", used.and_then(|used| memory(&meminfo, Some(used))));
    let of_kernel = |name: &str| read(&Path::new("/proc/sys/kernel").join(name));
    add("pid.available", pids(&[of_kernel("pid_max"), of_kernel("threads-max")], &read(Path::new("/proc/loadavg"))));
    let image_dir = image_dir(&read(Path::new("/proc/self/mounts")));
    for (name, dir) in [("nodefs", Some(root_dir.to_owned())), ("imagefs", image_dir)] {
        let Some(fs) = dir.and_then(|dir| statvfs(&dir).ok()) else { continue };
        add(&format!("{name}.available"), Some(space(&fs)));
        // A file system without a fixed number of inodes, such as btrfs, says 0.
        add(&format!("{name}.inodesFree"), Some(inodes(&fs)).filter(|inodes| inodes.capacity > 0));
    }
    supplies
}

/// Of the root of version 2, since Linux 5.
const ROOT_STAT: &str = "/sys/fs/cgroup/memory.stat";

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[allow(clippy::useless_conversion, reason = "the fields are narrower on 32 bit")]
pub(super) fn space(fs: &Statvfs) -> Supply {
    let bytes = |blocks: nix::libc::fsblkcnt_t| u64::from(blocks).saturating_mul(u64::from(fs.fragment_size()));
    Supply { available: bytes(fs.blocks_available()), capacity: bytes(fs.blocks()) }
}

#[allow(clippy::useless_conversion, reason = "the fields are narrower on 32 bit")]
pub(super) fn inodes(fs: &Statvfs) -> Supply {
    Supply { available: u64::from(fs.files_free()), capacity: u64::from(fs.files()) }
}

/// What a cgroup uses and the kernel would not give back at once: a kubelet's "working set" (setMemoryStats,
/// github.com/google/cadvisor/container/libcontainer/handler.go, v0.38.6). The root of version 2 has no such files.
fn working_set(cgroup: &Path) -> Option<u64> {
    let usage = ["memory.usage_in_bytes", "memory.current"].map(|name| read(&cgroup.join(name)));
    let usage: u64 = usage.iter().find_map(|text| text.trim().parse().ok())?;
    Some(usage.saturating_sub(inactive_file(&read(&cgroup.join("memory.stat")))?))
}

/// The same of the root of version 2, where what a process and the page cache have is what is used, and the kernel's own
/// memory is not (rootStatsFromMeminfo and what took its place, opencontainers/runc libcontainer/cgroups/fs2/memory.go: older
/// ones count more as used, and refuse more).
fn root_working_set(stat: &str) -> Option<u64> {
    let used = count(stat, "anon")?.saturating_add(count(stat, "file")?);
    Some(used.saturating_sub(inactive_file(stat)?))
}

/// With that of the cgroups below.
fn inactive_file(stat: &str) -> Option<u64> {
    count(stat, "total_inactive_file").or_else(|| count(stat, "inactive_file"))
}

fn count(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// All memory without what is used; where no cgroup tells that, without what is neither free nor cached for long
/// (rootStatsFromMeminfo, github.com/opencontainers/runc/libcontainer/cgroups/fs2/memory.go, v1.1).
fn memory(meminfo: &str, used: Option<u64>) -> Option<Supply> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib.saturating_mul(1024))
    };
    let capacity = bytes("MemTotal")?;
    let available = match used {
        Some(used) => capacity.saturating_sub(used),
        None => bytes("MemFree")?.saturating_add(bytes("Inactive(file)")?),
    };
    Some(Supply { available, capacity })
}

/// All tasks, `running/total` in the load average, and the lowest limit of their number (`Stats`,
/// pkg/kubelet/stats/pidlimit/pidlimit_linux.go, v1.20.2 and v1.36; v1.20.2 looks at `pid_max` alone).
fn pids(limits: &[String], load: &str) -> Option<Supply> {
    let capacity: u64 = limits.iter().filter_map(|limit| limit.trim().parse().ok()).min()?;
    let (_, total) = load.split_whitespace().nth(3)?.split_once('/')?;
    Some(Supply { available: capacity.saturating_sub(total.parse().ok()?), capacity })
}

/// A directory on the file system of images: that of the writable layer of a container that runs. Only the runtime
/// knows where it keeps images; the kernel knows what it mounted from there.
fn image_dir(mounts: &str) -> Option<PathBuf> {
    let overlays = || {
        mounts.lines().filter_map(|line| {
            let [_, at, "overlay", options, ..] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
            let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="))?;
            Some((at, upper)).filter(|_| upper.starts_with('/'))
        })
    };
    // containerd's namespace of the kubelet; or CRI-O's storage.
    let mut of_containerd = overlays().filter(|(at, _)| at.contains("/k8s.io/") && at.ends_with("/rootfs"));
    let mut of_crio = overlays().filter(|(at, _)| at.contains("/containers/storage/") && at.ends_with("/merged"));
    of_containerd.next().or_else(|| of_crio.next()).map(|(_, upper)| upper.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_supplies_of_a_node() {
        let dir = tempfile::tempdir().unwrap();
        let supplies = measure(dir.path());
        for name in ["memory.available", "nodefs.available", "pid.available"] {
            let supply = supplies[name];
            assert!(supply.available > 0 && supply.available <= supply.capacity, "{name}: {supply:?}");
        }
        let supplies = measure(&dir.path().join("absent"));
        assert!(!supplies.contains_key("nodefs.available"), "what cannot be read is left out");
    }

    #[test]
    fn memory_by_cgroup_or_by_the_kernels_text() {
        let text = "MemTotal:        8000 kB\nMemFree: 1000 kB\nMemAvailable:    3000 kB\nInactive(file): 500 kB\n";
        assert_eq!(memory(text, Some(7000 << 10)), Some(Supply { available: 1000 << 10, capacity: 8000 << 10 }));
        assert_eq!(memory(text, None), Some(Supply { available: 1500 << 10, capacity: 8000 << 10 }));
        assert_eq!(memory(text, Some(9000 << 10)), Some(Supply { available: 0, capacity: 8000 << 10 }));
        assert_eq!(memory("MemTotal: 8000 kB\n", None), None);
        let root = "anon 700\nfile 500\nkernel_stack 900\ninactive_file 200\n";
        assert_eq!((root_working_set(root), root_working_set("anon 7\nfile 5\n")), (Some(1000), None));
        let cgroup = tempfile::tempdir().unwrap();
        assert_eq!(working_set(cgroup.path()), None);
        for (file, stat) in [
            ("memory.usage_in_bytes", "inactive_file 1\ntotal_inactive_file 300\n"),
            ("memory.current", "inactive_file 300\ntotal_inactive_fil 7"),
        ] {
            let cgroup = tempfile::tempdir().unwrap();
            std::fs::write(cgroup.path().join(file), "1000\n").unwrap();
            std::fs::write(cgroup.path().join("memory.stat"), stat).unwrap();
            assert_eq!(working_set(cgroup.path()), Some(700), "{file}");
        }
    }

    #[test]
    fn process_ids_by_the_lowest_limit() {
        let of = |limits: &[&str]| {
            let limits: Vec<String> = limits.iter().map(ToString::to_string).collect();
            pids(&limits, "0.00 0.01 0.05 2/400 1234\n")
        };
        assert_eq!(of(&["4194304\n", "60000\n"]), Some(Supply { available: 59_600, capacity: 60_000 }));
        assert_eq!(of(&["300", ""]), Some(Supply { available: 0, capacity: 300 }));
        assert_eq!(of(&["", ""]), None);
    }

    #[test]
    fn images_are_where_containers_are_mounted_from() {
        let containerd = "overlay /run/containerd/io.containerd.runtime.v2.task/k8s.io/0f/rootfs overlay \
            rw,relatime,lowerdir=/data/s/1/fs:/data/s/2/fs,upperdir=/data/s/3/fs,workdir=/data/s/3/work 0 0";
        let crio = "overlay /var/lib/containers/storage/overlay/1a/merged overlay rw,lowerdir=l/X,upperdir=/var/lib/containers/storage/overlay/1a/diff 0 0";
        let others = "overlay /var/lib/docker/overlay2/1a/merged overlay rw,upperdir=/var/lib/docker/overlay2/1a/diff 0 0\n\
            overlay / overlay rw,upperdir=/else 0 0\nproc /proc proc rw 0 0\n\nodd";
        let dir = |lines: &[&str]| image_dir(&lines.join("\n"));
        assert_eq!(dir(&[others, crio, containerd]), Some("/data/s/3/fs".into()));
        assert_eq!(dir(&[others, crio]), Some("/var/lib/containers/storage/overlay/1a/diff".into()));
        assert_eq!(dir(&[others]), None);
        assert_eq!(dir(&["overlay /x/k8s.io/0f/rootfs overlay rw,upperdir=relative 0 0"]), None);
    }
}
