//! Tests through the library's public doors and the public protocol, against real servers. `tests/run.sh` finds or
//! fetches what they need.

mod clients;
mod contract;
mod drain;
mod embedded;
mod evening;
mod faults;
mod fleet;
mod handshake;
mod hostile;
mod http;
mod mongo;
mod mongo_contract;
mod mongo_faults;
mod nodes;
mod nodes_gaps;
mod nodes_online;
mod nodes_reads;
mod outbox;
mod own_disk;
mod places;
mod protocol;
mod redis_counts;
mod redis_gaps;
mod redis_relay;
mod redis_topologies;
mod redis_trouble;
mod resume;
mod rolling;
mod rooms;
mod slow;
mod smoke;
mod start;
mod support;
mod surface;
mod tastes;
