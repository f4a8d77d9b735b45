//! Tests through the library's public doors.

mod contract;
mod embedded;
