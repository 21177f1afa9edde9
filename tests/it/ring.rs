//! The ring against its golden vectors and against a second implementation, in Python.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use ringq::domain::{JobId, JobKey, Ring, ShardName, TopicName};

use crate::harness::in_ci;

const VECTORS: &str = include_str!("../ring/vectors.txt");

fn member(text: &str) -> (ShardName, u32) {
    let (name, weight) = text.split_once(':').unwrap();
    (ShardName::try_new(name).unwrap(), weight.parse().unwrap())
}

#[test]
fn the_ring_is_what_it_was() {
    let (mut ring, mut checked) = (Ring::new(Vec::new()), 0);
    for line in VECTORS.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["ring", fingerprint, members @ ..] = &*words {
            ring = Ring::new(members.iter().map(|text| member(text)).collect());
            assert_eq!(format!("{:016x}", ring.fingerprint()), *fingerprint, "{line}");
        } else if let [owner, topic, id] = *words {
            let key = JobKey { topic: TopicName::stored(topic), id: JobId::stored(id) };
            assert_eq!(ring.owner(&key).unwrap().as_str(), owner, "{line}");
            checked += 1;
        }
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn a_second_implementation_agrees() {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/ring");
    let vectors = std::fs::File::open(tests.join("vectors.txt")).unwrap();
    let mut python = Command::new("python3");
    python.arg(tests.join("ring.py")).stdin(vectors).stderr(Stdio::inherit());
    match python.output() {
        Ok(output) => assert_eq!(String::from_utf8(output.stdout).unwrap(), VECTORS),
        Err(error) => assert!(!in_ci(), "python3: {error}"),
    }
}
