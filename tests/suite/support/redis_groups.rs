//! Servers that look after each other: sentinels and clusters.

use super::redis::RedisServer;
use super::relay::{ask, wait_until};

impl RedisServer {
    /// A sentinel that alone decides on the failover of a master, after a second.
    pub async fn start_sentinel(service: &str, master: u16) -> Self {
        let sentinel = Self::start_as_sentinel().await;
        let _: String = ask(&sentinel, &["SENTINEL", "MONITOR", service, "127.0.0.1", &master.to_string(), "1"]).await;
        let _: String = ask(&sentinel, &["SENTINEL", "SET", service, "down-after-milliseconds", "1000"]).await;
        sentinel
    }

    /// A cluster of three masters.
    pub async fn start_cluster() -> [Self; 3] {
        let servers =
            [Self::start_for_cluster().await, Self::start_for_cluster().await, Self::start_for_cluster().await];
        let bounds = ["0 5460", "5461 10922", "10923 16383"];
        for (server, bounds) in servers.iter().zip(bounds) {
            let (first, last) = bounds.split_once(' ').unwrap();
            let _: String = ask(server, &["CLUSTER", "ADDSLOTSRANGE", first, last]).await;
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &servers[0].port().to_string()];
            let _: String = ask(server, &meet).await;
        }
        wait_until("the cluster is whole", async || {
            for server in &servers {
                let info: String = ask(server, &["CLUSTER", "INFO"]).await;
                if !info.contains("cluster_state:ok") || !info.contains("cluster_known_nodes:3") {
                    return false;
                }
            }
            true
        })
        .await;
        servers
    }

    async fn start_for_cluster() -> Self {
        Self::start_as(None, &["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]).await
    }

    /// A replica of this master of a cluster, which takes over when that dies.
    pub async fn start_cluster_replica(&self) -> Self {
        let replica = Self::start_for_cluster().await;
        let _: String = ask(&replica, &["CLUSTER", "MEET", "127.0.0.1", &self.port().to_string()]).await;
        let id: String = ask(self, &["CLUSTER", "MYID"]).await;
        wait_until("it knows its master", async || {
            let nodes: String = ask(&replica, &["CLUSTER", "NODES"]).await;
            nodes.contains(&id)
        })
        .await;
        let _: String = ask(&replica, &["CLUSTER", "REPLICATE", &id]).await;
        wait_until("all know that it follows", async || {
            let (link, nodes): (String, String) =
                (ask(&replica, &["INFO", "replication"]).await, ask(self, &["CLUSTER", "NODES"]).await);
            link.contains("master_link_status:up") && nodes.contains("slave")
        })
        .await;
        replica
    }

    /// Moves a slot with what is in it to another server.
    pub async fn move_slot(cluster: &[Self; 3], slot: i64) {
        let slot = slot.to_string();
        let mut ids = Vec::new();
        let mut from = 0;
        for (place, server) in cluster.iter().enumerate() {
            ids.push(ask::<String>(server, &["CLUSTER", "MYID"]).await);
            let keys: Vec<String> = ask(server, &["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
            from = if keys.is_empty() { from } else { place };
        }
        let to = (from + 1) % cluster.len();
        let _: String = ask(&cluster[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]).await;
        let _: String = ask(&cluster[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]).await;
        let keys: Vec<String> = ask(&cluster[from], &["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
        for key in keys {
            let port = cluster[to].port().to_string();
            let _: String = ask(&cluster[from], &["MIGRATE", "127.0.0.1", &port, &key, "0", "1000"]).await;
        }
        for place in [to, from, 3 - to - from] {
            let _: String = ask(&cluster[place], &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]).await;
        }
    }
}
