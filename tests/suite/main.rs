//! Tests through the library's public doors and the public protocol, against real servers. `tests/run.sh` finds or
//! fetches what they need.

mod contract;
mod embedded;
mod hostile;
mod mongo;
mod mongo_faults;
mod protocol;
mod redis_relay;
mod resume;
mod smoke;
mod support;
