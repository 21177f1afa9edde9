//! The books of one scenario: every job is numbered, and each number must be enqueued, delivered
//! and acknowledged exactly once, with its body intact and never early.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

const ENQUEUED: u8 = 1;
const DELIVERED: u8 = 2;
const ACKED: u8 = 4;

/// Bytes of a body that are not filler: number, due time, checksum.
const FIXED_BYTES: usize = 4 + 8 + 8;

/// The books.
#[derive(Debug)]
pub(crate) struct Ledger {
    marks: Vec<AtomicU8>,
    body_bytes: usize,
    acked: AtomicUsize,
    doubled: AtomicUsize,
    early: AtomicUsize,
    corrupt: AtomicUsize,
}

/// A delivery that was entered in the books.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The job's number.
    pub(crate) number: u32,
    /// Microseconds after its due time; 0 for a job without one.
    pub(crate) late_us: i64,
}

impl Ledger {
    /// Books for `jobs` jobs with bodies of `body_bytes`.
    pub(crate) fn new(jobs: u32, body_bytes: usize) -> Self {
        assert!(body_bytes >= FIXED_BYTES, "a body holds at least {FIXED_BYTES} bytes");
        Self {
            marks: (0..jobs).map(|_| AtomicU8::new(0)).collect(),
            body_bytes,
            acked: AtomicUsize::new(0),
            doubled: AtomicUsize::new(0),
            early: AtomicUsize::new(0),
            corrupt: AtomicUsize::new(0),
        }
    }

    /// How many jobs there are.
    pub(crate) fn jobs(&self) -> u32 {
        u32::try_from(self.marks.len()).expect("made from a u32")
    }

    /// The body of a job: its number, its due time (0: none), filler and a checksum.
    pub(crate) fn body(&self, number: u32, due_us: i64) -> Bytes {
        let mut body = BytesMut::with_capacity(self.body_bytes);
        body.put_u32(number);
        body.put_i64(due_us);
        body.put_bytes(b'.', self.body_bytes - FIXED_BYTES);
        body.put_u64(xxh3_64(&body));
        body.freeze()
    }

    /// Enters an enqueue that was answered.
    pub(crate) fn enqueued(&self, number: u32) {
        self.mark(number, ENQUEUED);
    }

    /// Enters a delivery received at `now_us`. None: the body is not one of ours.
    pub(crate) fn delivered(&self, body: &[u8], now_us: i64) -> Option<Entry> {
        let Some((number, due_us)) = self.read(body) else {
            self.corrupt.fetch_add(1, Relaxed);
            return None;
        };
        self.mark(number, DELIVERED);
        let late_us = if due_us == 0 { 0 } else { now_us - due_us };
        if late_us < 0 {
            self.early.fetch_add(1, Relaxed);
        }
        Some(Entry { number, late_us })
    }

    /// Enters an ack that was answered OK.
    pub(crate) fn acked(&self, number: u32) {
        self.mark(number, ACKED);
        self.acked.fetch_add(1, Relaxed);
    }

    /// How many acks there were.
    pub(crate) fn acks(&self) -> usize {
        self.acked.load(Relaxed)
    }

    /// Whether every job has been acknowledged.
    pub(crate) fn complete(&self) -> bool {
        self.acks() >= self.marks.len()
    }

    /// Compares the three sets: each job exactly once in each of them.
    pub(crate) fn balance(&self) -> Result<()> {
        let without = |mark| self.marks.iter().filter(|m| m.load(Relaxed) & mark == 0).count();
        let (unwritten, lost) = (without(ENQUEUED), without(DELIVERED));
        let unacked = without(ACKED);
        let [doubled, early, corrupt] =
            [&self.doubled, &self.early, &self.corrupt].map(|count| count.load(Relaxed));
        ensure!(
            [unwritten, lost, unacked, doubled, early, corrupt] == [0; 6],
            "the books of {} jobs do not balance: {unwritten} not enqueued, {lost} not delivered, \
             {unacked} not acknowledged, {doubled} doubled, {early} early, {corrupt} corrupt",
            self.marks.len(),
        );
        Ok(())
    }

    fn mark(&self, number: u32, mark: u8) {
        let before = self.marks[number as usize].fetch_or(mark, Relaxed);
        if before & mark != 0 {
            self.doubled.fetch_add(1, Relaxed);
        }
    }

    fn read(&self, body: &[u8]) -> Option<(u32, i64)> {
        let (content, checksum) = body.split_last_chunk::<8>()?;
        let (number, rest) = content.split_first_chunk::<4>()?;
        let number = u32::from_be_bytes(*number);
        let sound = body.len() == self.body_bytes
            && xxh3_64(content) == u64::from_be_bytes(*checksum)
            && (number as usize) < self.marks.len();
        sound.then_some((number, i64::from_be_bytes(*rest.first_chunk::<8>()?)))
    }
}

/// Microseconds of the wall clock, the one that due times are given by.
pub(crate) fn wall_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_micros()).expect("before the year 294246")
}
