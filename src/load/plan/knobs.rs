//! What the user typed: every knob of a load test, as a key of a profile and as a flag, not yet judged.

use clap::Args;
use serde::{Deserialize, Serialize};

macro_rules! knobs {
    ($($(#[doc = $help:literal])+ $knob:ident: $kind:ty, $value:literal;)+) => {
        /// The knobs. What is absent is left to the profile, and in the profile to the defaults.
        #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Knobs {
            $(
                $(#[doc = $help])+
                #[arg(long, value_name = $value)]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $knob: Option<$kind>,
            )+
        }

        impl Knobs {
            /// These where they are given, else `others`.
            #[must_use]
            pub fn or(self, others: Self) -> Self {
                Self { $($knob: self.$knob.or(others.$knob),)+ }
            }

            /// Every knob's name.
            #[must_use]
            pub fn names() -> &'static [&'static str] {
                &[$(stringify!($knob)),+]
            }

            /// Whether the knob of this name is given.
            #[must_use]
            pub fn has(&self, name: &str) -> bool {
                match name {
                    $(stringify!($knob) => self.$knob.is_some(),)+
                    _ => false,
                }
            }
        }
    };
}

knobs! {
    /// Rooms [default: 1].
    rooms: u32, "N";
    /// What the rooms' names begin with; by default each run has rooms of its own.
    room: String, "NAME";
    /// How uneven the rooms are: the n-th gets a share of 1/n^SKEW of viewers and comments (Zipf) [default: 0, all alike].
    skew: f64, "SKEW";
    /// Viewers, all rooms together [default: 100].
    viewers: u32, "N";
    /// How many of the viewers send; by default as many as keep to one comment in two seconds each at the peak.
    senders: u32, "N";
    /// Comments a second, all rooms together [default: 10].
    rate: f64, "N";
    /// How the times of comments lie: poisson, as people type, or even [default: poisson].
    arrivals: String, "HOW";
    /// A burst's rate, in times of --rate; 1 for none [default: 1].
    burst: f64, "N";
    /// How long a burst lasts [default: 3s].
    burst_for: String, "TIME";
    /// From the begin of a burst to that of the next; the first is in the middle of this [default: all the duration].
    burst_every: String, "TIME";
    /// A recorded stream to send instead of --rate: a .csv or .jsonl file as for `replay`, or `evening`, the shipped one.
    trace: String, "FILE";
    /// How many times faster than recorded the trace is sent [default: 1].
    trace_speed: f64, "N";
    /// Where in the trace to begin [default: 0s].
    trace_from: String, "TIME";
    /// Over how long the viewers come [default: 1s for each 1,000].
    ramp: String, "TIME";
    /// Whether sending begins with the first viewer instead of the last (true or false) [default: false].
    send_in_ramp: bool, "BOOL";
    /// Over how long the viewers leave, at the end of the duration [default: 0s: all stay].
    leave: String, "TIME";
    /// How long to send [default: 30s].
    duration: String, "TIME";
    /// Characters in a text: a number, or least..most; 6 at least, which tell a text from any other [default: 6..40].
    text: String, "CHARS";
    /// Which acknowledgement to ask for: accepted, stored, or both in turn [default: both].
    ack: String, "LEVEL";
    /// Compression that viewers ask for: none, zstd, br or deflate [default: none].
    compress: String, "FORMAT";
    /// Part of the viewers that ask for it, 0 to 1 [default: 1].
    compress_share: f64, "PART";
    /// Comments a second that viewers ask to get at most (`rate=`); 0 for all [default: 0].
    tier: u32, "N";
    /// Part of the viewers that ask so, 0 to 1 [default: 1].
    tier_share: f64, "PART";
    /// Part of the viewers that read slowly, 0 to 1 [default: 0].
    slow: f64, "PART";
    /// Bytes a second that a slow viewer reads [default: 2000].
    slow_bytes: u32, "N";
    /// How often viewers lose their connections, all at once, and come back with their cursor; 0s for never [default: 0s].
    storm_every: String, "TIME";
    /// Part of the viewers that lose them, 0 to 1 [default: 0.5].
    storm_share: f64, "PART";
    /// Within how long they come back [default: 2s].
    storm_within: String, "TIME";
    /// Connections besides the viewers that misbehave: texts over all limits, floods, frames that are none [default: 0].
    misbehaving: u32, "N";
    /// 60-second queries a second, over the rooms in turn [default: 2].
    query_rate: f64, "N";
    /// How long to wait for what is still missing at the end [default: 10s].
    patience: String, "TIME";
    /// Equal seeds give equal times, rooms and texts [default: 1].
    seed: u64, "N";
}
