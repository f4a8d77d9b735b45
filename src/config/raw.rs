//! What the user typed: every key with its default, as text, not yet judged.
//!
//! The defaults here are the defaults; `config/default.toml` repeats them for people, and a test holds the two together.

use serde::{Deserialize, Serialize};

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty = $default:expr,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct $name {
            $($(#[$field_doc])* pub(super) $field: $kind,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
}

section! {
    /// The whole configuration.
    RawConfig {
        listen: String = "127.0.0.1:8080".into(),
        data_dir: String = "danmakud-data".into(),
        server: RawServer = RawServer::default(),
        room: RawRoom = RawRoom::default(),
        limits: RawLimits = RawLimits::default(),
        store: RawStore = RawStore::default(),
        mongodb: RawMongo = RawMongo::default(),
        redis: RawRedis = RawRedis::default(),
        auth: RawAuth = RawAuth::default(),
        shutdown: RawShutdown = RawShutdown::default(),
        log: RawLog = RawLog::default(),
    }
}

section! {
    RawServer {
        max_connections: i64 = 100_000,
        max_per_address: i64 = 0,
        max_handshakes: i64 = 4096,
        max_message_bytes: i64 = 8192,
        max_fragments: i64 = 64,
        max_frames_per_sec: i64 = 50,
        request_timeout: String = "10s".into(),
        ping_interval: String = "30s".into(),
        ping_timeout: String = "10s".into(),
        stall_limit: String = "30s".into(),
        probe_interval: String = "5s".into(),
    }
}

section! {
    RawRoom {
        ring: i64 = 1024,
        recent: i64 = 200,
        max_window: String = "100ms".into(),
        evict_after: String = "2m".into(),
        max_rooms: i64 = 200_000,
    }
}

section! {
    RawLimits {
        max_chars: i64 = 100,
        max_text_bytes: i64 = 1024,
        max_combining: i64 = 6,
        min_interval: String = "1s".into(),
        burst: i64 = 5,
    }
}

section! {
    RawStore {
        retention: String = "1h".into(),
        queue: i64 = 65_536,
        flush_interval: String = "100ms".into(),
        batch: i64 = 1000,
        in_flight: i64 = 4,
        read_patience: String = "2s".into(),
        write_patience: String = "3s".into(),
        outbox_max_bytes: i64 = 1_073_741_824,
        outbox_replay_per_sec: i64 = 10_000,
        durability: String = "memory".into(),
    }
}

section! {
    RawMongo {
        uri: String = String::new(),
        database: String = String::new(),
        collection: String = "danmaku".into(),
        write_concern: String = "majority".into(),
        journal: bool = true,
        min_pool_size: i64 = 4,
        max_pool_size: i64 = 32,
        connect_timeout: String = "5s".into(),
        server_selection_timeout: String = "10s".into(),
        write_timeout: String = "10s".into(),
    }
}

section! {
    RawRedis {
        url: String = String::new(),
        mode: String = "single".into(),
        service: String = String::new(),
        prefix: String = "danmakud".into(),
    }
}

section! {
    RawAuth {
        anonymous: String = "send".into(),
        secret: String = String::new(),
        keys: String = String::new(),
        refresh: String = "5m".into(),
        issuer: String = String::new(),
        audience: String = String::new(),
        leeway: String = "5s".into(),
        open_metrics: bool = false,
    }
}

section! {
    RawShutdown {
        deadline: String = "30s".into(),
        grace: String = "0s".into(),
        close_spread: String = "2s".into(),
        reconnect_after: String = "1s".into(),
    }
}

section! {
    RawLog {
        filter: String = "info".into(),
        format: String = "text".into(),
    }
}
