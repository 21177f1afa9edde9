//! A small ext4 file system in a file, whose writes reach the file only when they are synced.
//!
//! A power cut loses the page cache of the mounted file system: a copy of the image file holds the synced data, and
//! nothing else that is younger than the commit interval. The copy is mounted like a disk after the cut, with its
//! journal.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 128 << 20;

/// Ability of this machine to simulate power cuts.
pub(crate) enum Offer {
    /// Simulation works.
    Able,
    /// Simulation would work, but a tool is missing.
    Lacking(String),
    /// No root, or no loop mounts.
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
    let attempt = || Mounted::fresh().map(drop);
    match attempt() {
        Ok(()) => Offer::Able,
        Err(error) => Offer::Unable(format!("{error:#}")),
    }
}

/// A mounted image. Dropping it unmounts it and deletes the file.
#[derive(Debug)]
pub(crate) struct Mounted {
    /// Directory that the copies share.
    dir: Arc<TempDir>,
    /// Number of cuts so far.
    cuts: u32,
    /// Mount point.
    pub(crate) path: PathBuf,
}

impl Mounted {
    /// Creates a new, empty file system.
    pub(crate) fn fresh() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ringq-disk-").tempdir()?;
        let image = image(&dir, 0);
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        Self::mount(Arc::new(dir), 0)
    }

    /// Mounts the content of the disk after a power cut at this moment. The servers must stand still: a copy takes a
    /// while, and a disk stops in one instant.
    pub(crate) fn after_cut(&self) -> Result<Self> {
        let (from, to) = (image(&self.dir, self.cuts), image(&self.dir, self.cuts + 1));
        run(Command::new("cp").arg("--sparse=always").args([from, to]))?;
        Self::mount(Arc::clone(&self.dir), self.cuts + 1)
    }

    /// Mounts without commits by time: only a sync of the server writes to the disk.
    fn mount(dir: Arc<TempDir>, cuts: u32) -> Result<Self> {
        let path = dir.path().join(format!("after-{cuts}"));
        fs::create_dir(&path)?;
        let image = image(&dir, cuts);
        run(Command::new("mount").args(["-o", "loop,commit=300"]).arg(&image).arg(&path))?;
        Ok(Self { dir, cuts, path })
    }
}

/// Returns the image file after this number of cuts.
fn image(dir: &TempDir, cuts: u32) -> PathBuf {
    dir.path().join(format!("after-{cuts}.img"))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for options in [&[][..], &["-l"]] {
            if run(Command::new("umount").args(options).arg(&self.path)).is_ok() {
                break;
            }
        }
        let _ = fs::remove_file(image(&self.dir, self.cuts));
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
    let disk = Mounted::fresh()?;
    let body = vec![7; 100_000];
    fs::write(disk.path.join("unsynced"), &body)?;
    fs::write(disk.path.join("synced"), &body)?;
    File::open(disk.path.join("synced"))?.sync_all()?;
    fs::write(disk.path.join("later"), &body)?;

    let copy = disk.after_cut()?;
    assert_eq!(fs::read(copy.path.join("synced"))?, body);
    for name in ["unsynced", "later"] {
        assert_ne!(fs::read(copy.path.join(name)).unwrap_or_default(), body, "{name}");
    }
    Ok(())
}
