//! Tests against real servers. `tests/run.sh` finds or fetches what they need.

mod mongo;
mod mongo_faults;
mod support;
