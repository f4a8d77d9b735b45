//! Tests through the library's public doors and the public protocol, against real servers. `tests/run.sh` finds or
//! fetches what they need.

mod contract;
mod embedded;
mod evening;
mod mongo;
mod mongo_contract;
mod mongo_faults;
mod redis_relay;
mod smoke;
mod support;
