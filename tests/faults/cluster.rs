//! N redis-servers and M replicas on all of them.

use std::net::SocketAddr;

use crate::harness::{Redis, Server, Setup};
use crate::proxy::Proxy;

/// How a cluster is made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) shards: usize,
    pub(crate) replicas: usize,
    /// `appendfsync` of every Redis.
    pub(crate) fsync: &'static str,
    /// Whether replicas reach each Redis through a [`Proxy`].
    pub(crate) proxied: bool,
}

/// All server processes of a trial. Dropping it kills them.
pub(crate) struct Cluster {
    // Replicas go first: they would log that their shards are gone.
    pub(crate) replica: Vec<Server>,
    /// By shard, where the shape asks for them.
    pub(crate) proxy: Vec<Proxy>,
    pub(crate) redis: Vec<Redis>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { shards: 4, replicas: 3, fsync: "everysec", proxied: false }
    }
}

impl Cluster {
    /// Starts all of it; `None` when there is no redis-server.
    pub(crate) async fn start(shape: &Shape) -> Option<Cluster> {
        let args = ["--save", "", "--appendonly", "yes", "--appendfsync", shape.fsync];
        let (mut redis, mut proxy) = (Vec::new(), Vec::new());
        for _ in 0..shape.shards {
            let server = Redis::with(&args).await?;
            if shape.proxied {
                proxy.push(Proxy::start(server.port()).await);
            }
            redis.push(server);
        }
        let urls: Vec<String> = match shape.proxied {
            true => proxy.iter().map(Proxy::url).collect(),
            false => redis.iter().map(Redis::url).collect(),
        };
        let ring: Vec<_> = urls.iter().enumerate().map(|(n, url)| format!("s{n}={url}")).collect();
        let mut replica = Vec::new();
        for _ in 0..shape.replicas {
            replica.push(Setup::new().ring(ring.clone()).restartable().start().await);
        }
        Some(Cluster { replica, proxy, redis })
    }

    /// Where the replicas serve.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.replica.iter().map(|replica| replica.grpc).collect()
    }
}
