//! From what was typed to what is valid.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{
    AckLevelName, Asked, Knobs, Plan, PlanError, Rate, Schedule, Seating, Sending, Slow, Storm, Taste, shipped,
};
use crate::load::client::Target;
use crate::load::engine::mark::{MARK_CHARS, MAX_NUMBER};
use crate::load::trace;
use crate::model::RoomId;
use crate::wire::Compression;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Comments a second when nothing else is said.
const RATE: f64 = 10.0;

/// Viewers that come in a second when nothing else is said.
const JOINS_PER_SEC: f64 = 1000.0;

/// Comments a second that a sender sends when nothing else is said: half of what a server takes by default.
const PER_SENDER: f64 = 0.5;

/// The longest text that may be asked for; far above what a server takes, so that refusals can be tried.
const MAX_CHARS: usize = 4096;

/// Knobs that mean nothing without another.
const NEEDS: &[(&str, &str)] = &[
    ("trace_speed", "trace"),
    ("trace_from", "trace"),
    ("burst_for", "burst"),
    ("burst_every", "burst"),
    ("compress_share", "compress"),
    ("tier_share", "tier"),
    ("slow_bytes", "slow"),
    ("storm_share", "storm_every"),
    ("storm_within", "storm_every"),
];

/// Knobs that mean nothing beside a trace.
const OF_RATE: &[&str] = &["arrivals", "burst", "burst_for", "burst_every", "text"];

/// What the command line has besides the knobs.
#[derive(Clone, Debug, Default)]
pub struct Asking {
    /// A shipped profile's name or a file.
    pub profile: Option<String>,
    /// Knobs given as flags.
    pub flags: Knobs,
    /// The servers' addresses.
    pub targets: Vec<Target>,
    /// Tokens.
    pub tokens: Vec<String>,
    /// Addresses to connect from.
    pub sources: Vec<IpAddr>,
}

/// What is more when a plan is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scaled {
    /// Comments a second.
    Rate,
    /// Viewers.
    Viewers,
    /// Both.
    Both,
}

/// Knows where a knob was given, for messages.
struct Judge<'a> {
    knobs: &'a Knobs,
    flags: &'a Knobs,
    profile: &'a str,
}

impl Plan {
    /// Reads the profile, puts the flags over it, and judges what comes out.
    ///
    /// # Errors
    /// [`PlanError`]; exit with 64.
    pub fn new(asking: Asking) -> Result<Self, PlanError> {
        let Asking { profile, flags, targets, tokens, sources } = asking;
        let (mut given, folder) = profile.as_deref().map_or_else(|| Ok(Default::default()), read)?;
        // What belongs to the one goes with it.
        if flags.rate.is_some() && flags.trace.is_none() {
            (given.trace, given.trace_speed, given.trace_from) = (None, None, None);
        }
        if flags.trace.is_some() && flags.rate.is_none() {
            (given.rate, given.arrivals, given.text) = (None, None, None);
            (given.burst, given.burst_for, given.burst_every) = (None, None, None);
        }
        let profile = profile.unwrap_or_default();
        let knobs = flags.clone().or(given);
        Judge { knobs: &knobs, flags: &flags, profile: &profile }.plan(&folder, (targets, tokens, sources))
    }

    /// The plan with so many times its load, all else as it is.
    ///
    /// # Errors
    /// [`PlanError`] when that makes no sense.
    pub fn scaled(&self, scale: f64, what: Scaled) -> Result<Self, PlanError> {
        let mut flags = self.knobs.clone();
        if what != Scaled::Viewers {
            match flags.trace {
                Some(_) => flags.trace_speed = Some(flags.trace_speed.unwrap_or(1.0) * scale),
                None => flags.rate = Some(flags.rate.unwrap_or(RATE) * scale),
            }
        }
        if what != Scaled::Rate {
            let viewers = f64::from(self.seating.viewers()) * scale;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what is too many is refused")]
            let viewers = (viewers.round() as u32).max(flags.rooms.unwrap_or(1));
            flags.viewers = Some(viewers);
            flags.senders = flags.senders.map(|senders| senders.min(viewers));
        }
        let (targets, tokens, sources) = (self.targets.clone(), self.tokens.clone(), self.sources.clone());
        let judge = Judge { knobs: &flags, flags: &Knobs::default(), profile: &self.profile };
        judge.plan(&self.folder, (targets, tokens, sources))
    }

    /// A room's comments have to be told apart by the number in their text.
    fn has_room_for_all(&self) -> Result<(), PlanError> {
        let Sending::Rate(rate) = &self.sending else { return Ok(()) };
        let all = rate.expected(self.duration.as_secs_f64());
        if all < f64::from(MAX_NUMBER) {
            return Ok(());
        }
        let problem =
            format!("{all:.0} comments are more than the {MAX_NUMBER} of one run; lower --rate or --duration");
        Err(PlanError::Knob { place: "--duration".to_owned(), problem })
    }
}

/// Reads a profile, and the folder that its files are in.
fn read(name: &str) -> Result<(Knobs, PathBuf), PlanError> {
    let path = Path::new(name);
    let toml = match shipped::profile(name) {
        Some(toml) => toml.to_owned(),
        None => std::fs::read_to_string(path).map_err(|source| PlanError::Profile {
            name: name.to_owned(),
            shipped: shipped::names(),
            source,
        })?,
    };
    let knobs = toml::from_str(&toml).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + toml.bytes().take(span.start).filter(|b| *b == b'\n').count());
        PlanError::Toml { file: path.to_owned(), line, problem: error.message().replace('\n', " ") }
    })?;
    Ok((knobs, path.parent().unwrap_or(Path::new("")).to_owned()))
}

impl Judge<'_> {
    fn place(&self, key: &str) -> String {
        if self.flags.has(key) || self.profile.is_empty() {
            format!("--{}", key.replace('_', "-"))
        } else {
            format!("{}: {key}", self.profile)
        }
    }

    fn refuse<T>(&self, key: &str, problem: impl Into<String>) -> Result<T, PlanError> {
        Err(PlanError::Knob { place: self.place(key), problem: problem.into() })
    }

    fn time(&self, key: &str, raw: Option<&String>, default: &str, least: Duration) -> Result<Duration, PlanError> {
        let raw = raw.map_or(default, String::as_str);
        let Ok(time) = humantime::parse_duration(raw) else {
            return self.refuse(key, format!("{raw:?} is not a time such as 100ms, 30s or 5m"));
        };
        if (least..=DAY).contains(&time) {
            return Ok(time);
        }
        self.refuse(key, format!("{raw} is not within {} to 1day", humantime::format_duration(least)))
    }

    fn number(&self, key: &str, raw: Option<f64>, default: f64, within: RangeInclusive<f64>) -> Result<f64, PlanError> {
        let number = raw.unwrap_or(default);
        if within.contains(&number) {
            return Ok(number);
        }
        self.refuse(key, format!("{number} is not within {} to {}", within.start(), within.end()))
    }

    fn count(&self, key: &str, raw: Option<u32>, default: u32, within: RangeInclusive<u32>) -> Result<u32, PlanError> {
        let count = raw.unwrap_or(default);
        if within.contains(&count) {
            return Ok(count);
        }
        self.refuse(key, format!("{count} is not within {} to {}", within.start(), within.end()))
    }

    fn plan(
        &self,
        folder: &Path,
        (targets, tokens, sources): (Vec<Target>, Vec<String>, Vec<IpAddr>),
    ) -> Result<Plan, PlanError> {
        let knobs = self.knobs;
        self.has_no_orphans()?;
        let duration = self.time("duration", knobs.duration.as_ref(), "30s", Duration::from_secs(1))?;
        let leave = self.time("leave", knobs.leave.as_ref(), "0s", Duration::ZERO)?;
        if leave > duration {
            return self.refuse("leave", "is longer than the duration, of which it is the end");
        }
        let sending = self.sending(folder, duration)?;
        let seating = self.seating(&sending, duration)?;
        let ramp = format!("{}ms", (f64::from(seating.viewers()) / JOINS_PER_SEC * 1000.0).ceil());
        if knobs.room.as_ref().is_some_and(|room| RoomId::parse(&format!("{room}-100000")).is_err()) {
            return self.refuse("room", "is not the beginning of a room's name: up to 50 of A–Z a–z 0–9 _ -");
        }
        let plan = Plan {
            profile: self.profile.to_owned(),
            folder: folder.to_owned(),
            knobs: knobs.clone(),
            targets,
            tokens,
            sources,
            room: knobs.room.clone(),
            seating,
            sending,
            ramp: self.time("ramp", knobs.ramp.as_ref(), &ramp, Duration::ZERO)?,
            sends_in_ramp: knobs.send_in_ramp.unwrap_or(false),
            leave,
            duration,
            ack: self.ack()?,
            taste: self.taste()?,
            slow: Slow {
                share: self.number("slow", knobs.slow, 0.0, 0.0..=1.0)?,
                bytes_per_sec: self.count("slow_bytes", knobs.slow_bytes, 2000, 1..=1_000_000_000)?,
            },
            storm: self.storm()?,
            misbehaving: self.count("misbehaving", knobs.misbehaving, 0, 0..=100_000)?,
            query_rate: self.number("query_rate", knobs.query_rate, 2.0, 0.0..=10_000.0)?,
            patience: self.time("patience", knobs.patience.as_ref(), "10s", Duration::from_secs(1))?,
            seed: knobs.seed.unwrap_or(1),
        };
        plan.has_room_for_all()?;
        Ok(plan)
    }

    /// A knob that would turn nothing is refused: whoever gave it meant something by it.
    fn has_no_orphans(&self) -> Result<(), PlanError> {
        let is_alone = |(knob, main): &&(&str, &str)| self.knobs.has(knob) && !self.knobs.has(main);
        if let Some((knob, main)) = NEEDS.iter().find(is_alone) {
            return self.refuse(knob, format!("does nothing without {}", self.place(main)));
        }
        let of_rate = OF_RATE.iter().find(|knob| self.knobs.has(knob) && self.knobs.has("trace"));
        match of_rate {
            Some(knob) => self.refuse(knob, "does nothing beside a trace, which has its own"),
            None => Ok(()),
        }
    }

    fn seating(&self, sending: &Sending, duration: Duration) -> Result<Seating, PlanError> {
        let rooms = self.count("rooms", self.knobs.rooms, 1, 1..=100_000)?;
        let viewers = self.count("viewers", self.knobs.viewers, rooms.max(100), 1..=1_000_000)?;
        if viewers < rooms {
            return self.refuse("viewers", format!("{viewers} are fewer than the {rooms} rooms, which need one each"));
        }
        let peak = match sending {
            Sending::Rate(rate) => rate.peak(),
            Sending::Trace { lines, speed, .. } => lines.len() as f64 * speed / duration.as_secs_f64(),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as many as fit are enough")]
        let enough = ((peak / PER_SENDER).ceil() as u32).clamp(rooms, viewers);
        let senders = self.count("senders", self.knobs.senders, enough, 1..=1_000_000)?;
        if senders > viewers {
            return self.refuse("senders", format!("{senders} are more than the {viewers} viewers, of whom they are"));
        }
        let skew = self.number("skew", self.knobs.skew, 0.0, 0.0..=4.0)?;
        let seating = Seating::new(rooms, skew, viewers, senders);
        // As many as each room needs of its own: a large one has a large part of the comments.
        Ok(if self.knobs.senders.is_none() { seating.with_enough_senders(peak / PER_SENDER) } else { seating })
    }

    fn sending(&self, folder: &Path, duration: Duration) -> Result<Sending, PlanError> {
        let knobs = self.knobs;
        if let Some(name) = &knobs.trace {
            if knobs.rate.is_some() {
                return self.refuse("trace", "has its own rate; leave out either it or rate");
            }
            let trace = |source| PlanError::Trace { place: self.place("trace"), source };
            let lines = match name.as_str() {
                shipped::EVENING => shipped::evening().map_err(trace)?,
                file if self.flags.has("trace") => trace::load(Path::new(file)).map_err(trace)?,
                file => trace::load(&folder.join(file)).map_err(trace)?,
            };
            let from = self.time("trace_from", knobs.trace_from.as_ref(), "0s", Duration::ZERO)?;
            if lines.last().is_none_or(|line| line.at < from) {
                return self.refuse("trace_from", "is behind the end of the trace");
            }
            let speed = self.number("trace_speed", knobs.trace_speed, 1.0, 0.001..=10_000.0)?;
            return Ok(Sending::Trace { lines: Arc::new(lines), speed, from });
        }
        let whole = humantime::format_duration(duration).to_string();
        let least = Duration::from_millis(1);
        let is_poisson = match knobs.arrivals.as_deref() {
            None | Some("poisson") => true,
            Some("even") => false,
            Some(other) => return self.refuse("arrivals", format!("{other:?} is neither poisson nor even")),
        };
        let rate = Rate {
            mean: self.number("rate", knobs.rate, RATE, 0.001..=1_000_000.0)?,
            burst: self.number("burst", knobs.burst, 1.0, 1.0..=10_000.0)?,
            burst_for: self.time("burst_for", knobs.burst_for.as_ref(), "3s", least)?,
            burst_every: self.time("burst_every", knobs.burst_every.as_ref(), &whole, least)?,
            is_poisson,
            chars: self.chars()?,
        };
        if rate.burst > 1.0 && rate.burst_for > rate.burst_every {
            return self.refuse("burst_for", "is longer than burst_every, from one burst to the next");
        }
        // Without bursts how long they last does not matter, but the arithmetic wants it in order.
        Ok(Sending::Rate(Rate { burst_for: rate.burst_for.min(rate.burst_every), ..rate }))
    }

    fn chars(&self) -> Result<RangeInclusive<usize>, PlanError> {
        let raw = self.knobs.text.as_deref().unwrap_or("6..40");
        let (least, most) = raw.split_once("..").unwrap_or((raw, raw));
        match (least.trim().parse::<usize>(), most.trim().trim_start_matches('=').parse::<usize>()) {
            (Ok(least), Ok(most)) if MARK_CHARS <= least && least <= most && most <= MAX_CHARS => Ok(least..=most),
            _ => self.refuse(
                "text",
                format!("{raw:?} is not characters such as 20 or {MARK_CHARS}..40, at most {MAX_CHARS}"),
            ),
        }
    }

    fn ack(&self) -> Result<Asked, PlanError> {
        match self.knobs.ack.as_deref() {
            None | Some("both") => Ok(Asked::Both),
            Some("accepted") => Ok(Asked::One(AckLevelName::Accepted)),
            Some("stored") => Ok(Asked::One(AckLevelName::Stored)),
            Some(other) => self.refuse("ack", format!("{other:?} is not accepted, stored or both")),
        }
    }

    fn taste(&self) -> Result<Taste, PlanError> {
        let knobs = self.knobs;
        let compression = match knobs.compress.as_deref() {
            None | Some("none") => None,
            Some(name) => match Compression::parse(name) {
                Some(compression) => Some(compression),
                None => return self.refuse("compress", format!("{name:?} is not none, zstd, br or deflate")),
            },
        };
        Ok(Taste {
            compression,
            compress_share: self.number("compress_share", knobs.compress_share, 1.0, 0.0..=1.0)?,
            tier: self.count("tier", knobs.tier, 0, 0..=1_000_000)?,
            tier_share: self.number("tier_share", knobs.tier_share, 1.0, 0.0..=1.0)?,
        })
    }

    fn storm(&self) -> Result<Option<Storm>, PlanError> {
        let knobs = self.knobs;
        let every = self.time("storm_every", knobs.storm_every.as_ref(), "0s", Duration::ZERO)?;
        let within = self.time("storm_within", knobs.storm_within.as_ref(), "2s", Duration::ZERO)?;
        let share = self.number("storm_share", knobs.storm_share, 0.5, 0.0..=1.0)?;
        Ok((!every.is_zero()).then_some(Storm { every, share, within }))
    }
}

impl Plan {
    /// Comments a second, as a mean over the duration.
    #[must_use]
    pub fn mean_rate(&self) -> f64 {
        let secs = self.duration.as_secs_f64();
        match &self.sending {
            Sending::Rate(rate) => rate.expected(secs) / secs,
            Sending::Trace { .. } => Schedule::new(self).count() as f64 / secs,
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
pub(in crate::load) mod tests;
