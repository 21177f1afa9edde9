//! A small ext4 file system in a file, whose writes reach the file only when they are synced.
//!
//! The page cache of the mounted file system is what a power cut takes away: a copy of the image
//! file holds what was synced, and nothing else that is younger than the commit interval. The copy
//! is mounted like a disk after the cut, journal and all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

const IMAGE_BYTES: u64 = 128 << 20;

/// Whether this machine can play power cuts.
pub(crate) enum Offer {
    /// It can.
    Able,
    /// It could, but a tool is missing.
    Lacking(String),
    /// It cannot: no root, or no loop mounts.
    Unable(String),
}

/// Tries it once.
pub(crate) fn offer() -> Offer {
    for name in ["mkfs.ext4", "mount", "umount"] {
        let known =
            Command::new(name).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if known.is_err() {
            return Offer::Lacking(format!("{name} is not installed"));
        }
    }
    let attempt = || -> Result<()> {
        let dir = tempfile::tempdir()?;
        Mounted::fresh(dir.path(), "probe")?;
        Ok(())
    };
    match attempt() {
        Ok(()) => Offer::Able,
        Err(error) => Offer::Unable(format!("{error:#}")),
    }
}

/// A mounted image. Dropping it unmounts it; the directory around it deletes the file.
#[derive(Debug)]
pub(crate) struct Mounted {
    image: PathBuf,
    /// Where it is mounted.
    pub(crate) path: PathBuf,
}

impl Mounted {
    /// A new, empty file system.
    pub(crate) fn fresh(dir: &Path, name: &str) -> Result<Self> {
        let image = dir.join(format!("{name}.img"));
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        Self::mount(dir, name, image)
    }

    /// What a disk would hold if the power went now. The server must stand still: a copy takes a
    /// while, and a disk stops in one instant.
    pub(crate) fn after_cut(&self, dir: &Path, name: &str) -> Result<Self> {
        let image = dir.join(format!("{name}.img"));
        run(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(&image))?;
        Self::mount(dir, name, image)
    }

    /// No commit by time: only a sync of the server brings anything to the disk.
    fn mount(dir: &Path, name: &str, image: PathBuf) -> Result<Self> {
        let path = dir.join(name);
        fs::create_dir(&path)?;
        run(Command::new("mount").args(["-o", "loop,commit=300"]).arg(&image).arg(&path))?;
        Ok(Self { image, path })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for options in [&[][..], &["-l"]] {
            if run(Command::new("umount").args(options).arg(&self.path)).is_ok() {
                break;
            }
        }
        let _ = fs::remove_file(&self.image);
    }
}

/// Stops a process and waits until none of its threads runs or sits in a system call, so that no
/// write of it is under way.
pub(crate) fn freeze(pid: u32) -> Result<()> {
    run(Command::new("kill").args(["-STOP", &pid.to_string()]))?;
    let limit = Instant::now() + Duration::from_secs(10);
    while !all_stopped(pid)? {
        ensure!(Instant::now() < limit, "process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn all_stopped(pid: u32) -> Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state != Some('T') {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs a tool to its end.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {message}");
    Ok(())
}

#[test]
fn a_copy_holds_what_was_synced_and_nothing_else() -> Result<()> {
    let Offer::Able = offer() else {
        println!("SKIPPED: no loop mounts here");
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let disk = Mounted::fresh(dir.path(), "before")?;
    let body = vec![7; 100_000];
    fs::write(disk.path.join("unsynced"), &body)?;
    fs::write(disk.path.join("synced"), &body)?;
    File::open(disk.path.join("synced"))?.sync_all()?;
    fs::write(disk.path.join("later"), &body)?;

    let copy = disk.after_cut(dir.path(), "after")?;
    assert_eq!(fs::read(copy.path.join("synced"))?, body);
    for name in ["unsynced", "later"] {
        assert_ne!(fs::read(copy.path.join(name)).unwrap_or_default(), body, "{name}");
    }
    Ok(())
}
