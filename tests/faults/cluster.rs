//! N redis-servers and M replicas on all of them, or one server on N files.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::harness::{Program, Redis, Server, Setup};
use crate::proxy::Proxy;
use crate::wire::Wire;

/// Settings of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) shards: usize,
    pub(crate) replicas: usize,
    /// Program of every Redis.
    pub(crate) program: Program,
    /// `appendfsync` of every Redis.
    pub(crate) fsync: &'static str,
    /// Further arguments of every Redis.
    pub(crate) redis_args: &'static [&'static str],
    /// Directory of all shards; `None`: each in the directory of its server.
    pub(crate) disk: Option<PathBuf>,
    /// Library that the processes with the jobs load before all others.
    pub(crate) preload: Option<PathBuf>,
    /// True if replicas reach each Redis through a [`Proxy`].
    pub(crate) proxied: bool,
    /// Change by every proxy in scripts, as in a broken build: original text and replacement.
    pub(crate) broken: Option<(&'static str, &'static str)>,
    /// True if replicas reach each Redis through a [`Wire`].
    pub(crate) wired: bool,
    /// True if the shards are SQLite files of a single replica.
    pub(crate) files: bool,
    /// Seed of the random choices of every proxy.
    pub(crate) seed: u64,
}

/// All server processes of a trial. Dropping it kills them.
pub(crate) struct Cluster {
    // Dropped first: they would log that their shards are gone.
    pub(crate) replica: Vec<Server>,
    /// Proxies by shard, if requested.
    pub(crate) proxy: Vec<Proxy>,
    pub(crate) redis: Vec<Redis>,
    /// Wire, if requested.
    pub(crate) wire: Option<Wire>,
    /// Shards of a replica, each `NAME=URL`. Empty: files in a directory of its own.
    pub(crate) ring: Vec<String>,
    /// `appendfsync` of every Redis.
    pub(crate) fsync: &'static str,
}

/// Builds the setup of a replica by its number. At its end it does not wait long for jobs of an unreachable shard.
/// Every other replica has more than one thread, whatever the machine.
fn setup(number: usize, ring: &[String]) -> Setup {
    common(number, Setup::new().ring(ring.to_vec()))
}

fn common(number: usize, setup: Setup) -> Setup {
    let setup = setup.restartable();
    setup.config("shutdown_grace = \"2s\"").config(&format!("threads = {}", 1 + number % 2))
}

/// Formats a shard as in the configuration of a replica.
pub(crate) fn shard(number: usize, url: &str) -> String {
    format!("s{number}={url}")
}

/// Returns the arguments of a Redis with persistence.
pub(crate) fn redis_args(fsync: &str) -> [&str; 6] {
    ["--save", "", "--appendonly", "yes", "--appendfsync", fsync]
}

/// Cuts off trailing zeros of logs. A disk may have the new size of a log without the bytes of the last write, which
/// was not synced: these are zeros then. Redis does not start with them before `redis-check-aof --fix` has cut them
/// off.
fn cut_off_zeros(dir: &Path) {
    let within = dir.join("appendonlydir");
    let dir = if within.exists() { &within } else { dir };
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    for log in files.filter(|path| path.extension().is_some_and(|end| end == "aof")) {
        let bytes = fs::read(&log).unwrap();
        let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
        if zeros > 0 {
            println!("the disk has {zeros} zeros at the end of {}", log.display());
            fs::write(&log, &bytes[..bytes.len() - zeros]).unwrap();
        }
    }
}

/// Returns the last lines of a log.
fn end_of(log: &str) -> String {
    let lines: Vec<_> = log.lines().rev().take(10).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// Returns the directory of a shard on a disk.
fn place(disk: &Path, number: usize) -> PathBuf {
    disk.join(format!("s{number}"))
}

/// Returns the urls of `shards` files on a disk.
fn files(disk: &Path, shards: usize) -> Vec<String> {
    let url = |number| format!("sqlite:{}.db", place(disk, number).display());
    (0..shards).map(|number| shard(number, &url(number))).collect()
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            shards: 4,
            replicas: 3,
            program: Program::Redis,
            fsync: "everysec",
            redis_args: &[],
            disk: None,
            preload: None,
            proxied: false,
            wired: false,
            broken: None,
            files: false,
            seed: 0,
        }
    }
}

impl Cluster {
    /// Starts all processes; `None` when there is no redis-server.
    pub(crate) async fn start(shape: &Shape) -> Option<Cluster> {
        if shape.files {
            return Some(Cluster::on_files(shape).await);
        }
        let args = [&redis_args(shape.fsync)[..], shape.redis_args].concat();
        let (mut redis, mut proxy) = (Vec::new(), Vec::new());
        let wire = if shape.wired { Some(Wire::start(shape.shards)?) } else { None };
        for number in 0..shape.shards {
            let disk = shape.disk.as_deref().map(|disk| place(disk, number));
            disk.iter().for_each(|disk| fs::create_dir(disk).unwrap());
            let preload = shape.preload.as_deref();
            let server = match &wire {
                Some(wire) => Redis::at(wire.place(number), &args).await?,
                None => Redis::on(disk, shape.program, &args, preload).await?,
            };
            if shape.proxied {
                let seed = shape.seed.wrapping_add(number as u64);
                proxy.push(Proxy::start(server.port(), shape.broken, seed).await);
            }
            redis.push(server);
        }
        let urls: Vec<String> = match shape.proxied {
            true => proxy.iter().map(Proxy::url).collect(),
            false => redis.iter().map(Redis::url).collect(),
        };
        let ring: Vec<_> = urls.iter().enumerate().map(|(n, url)| shard(n, url)).collect();
        let mut replica = Vec::new();
        for number in 0..shape.replicas {
            replica.push(setup(number, &ring).start().await);
        }
        Some(Cluster { replica, proxy, redis, wire, ring, fsync: shape.fsync })
    }

    async fn on_files(shape: &Shape) -> Cluster {
        let setup = common(1, Setup::new().preload(shape.preload.clone()));
        let ring = shape.disk.as_deref().map(|disk| files(disk, shape.shards)).unwrap_or_default();
        let server = match ring.is_empty() {
            true => setup.shards(shape.shards),
            false => setup.ring(ring.clone()),
        };
        let server = server.start().await;
        let (proxy, redis, wire) = (Vec::new(), Vec::new(), None);
        Cluster { replica: vec![server], proxy, redis, wire, ring, fsync: shape.fsync }
    }

    /// Ends a replica like an operator and starts one in its place, with the current ring.
    pub(crate) async fn roll(&mut self, number: usize) {
        let replica = &mut self.replica[number];
        let address = replica.grpc.to_string();
        replica.terminate();
        let status = replica.exit().await;
        assert!(status.success(), "replica {number} ended with {status}\n{}", replica.log());
        *replica = setup(number, &self.ring).listen(address).start().await;
    }

    /// Returns the processes with the jobs first, then all others.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let redis = self.redis.iter().map(Redis::pid);
        redis.chain(self.replica.iter().map(Server::pid)).collect()
    }

    /// Kills all processes.
    pub(crate) async fn kill(&mut self) {
        self.redis.iter_mut().for_each(Redis::kill);
        for replica in &mut self.replica {
            replica.kill().await;
        }
    }

    /// Starts all killed processes again, with their shards on another disk. Returns whether all of them start.
    pub(crate) async fn starts_again_on(&mut self, disk: &Path) -> bool {
        for (number, redis) in self.redis.iter_mut().enumerate() {
            redis.move_to(place(disk, number));
            // The cut may have left no file on the disk.
            fs::create_dir_all(place(disk, number)).unwrap();
            cut_off_zeros(&place(disk, number));
            if !redis.starts_again().await {
                println!("redis {number} does not start: {}", end_of(&redis.log()));
                return false;
            }
        }
        for replica in &mut self.replica {
            if self.redis.is_empty() {
                self.ring = files(disk, self.ring.len());
                replica.move_to(self.ring.clone());
            }
            if !replica.starts_again().await {
                println!("a replica does not start: {}", end_of(&replica.log()));
                return false;
            }
        }
        true
    }

    /// Returns the files of the shards, where there is no Redis.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        if !self.redis.is_empty() {
            return Vec::new();
        }
        let of_ring = self.ring.iter().filter_map(|shard| shard.split_once("=sqlite:"));
        let own = (0..).map(|number| self.replica[0].shard_file(&format!("s{number}")));
        let files: Vec<PathBuf> = match self.ring.is_empty() {
            true => own.take_while(|file| file.exists()).collect(),
            false => of_ring.map(|(_, file)| file.into()).collect(),
        };
        assert!(!files.is_empty(), "neither files nor Redis");
        files
    }

    /// Returns the gRPC addresses of the replicas.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.replica.iter().map(|replica| replica.grpc).collect()
    }
}
