//! Cost of the disk itself: a figure of a durable queue means little without it.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::percentile::percentile;

/// Number of writes of the probe.
const WRITES: usize = 200;

/// The time of one 4 KiB write and fdatasync, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fsync {
    /// Median.
    pub(crate) p50_us: f64,
    /// 99th percentile.
    pub(crate) p99_us: f64,
}

/// Appends to a file in `dir`, as a write-ahead log does.
pub(crate) fn probe(dir: &Path) -> Result<Fsync> {
    let path = dir.join("fsync-probe");
    let mut file = File::create(&path)?;
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let start = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    std::fs::remove_file(path)?;
    Ok(Fsync { p50_us: percentile(&mut times, 0.5), p99_us: percentile(&mut times, 0.99) })
}
