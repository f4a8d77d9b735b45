//! Which server of a cluster has which channels.

use redis::{FromRedisValue, RedisResult, Value, from_redis_value};

/// Slots of a cluster; a constant of its protocol.
const SLOTS: u16 = 16_384;

/// A server by host and port.
pub(super) type Host = (String, u16);

/// The servers of the slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// The first and the last slot of a stretch, and the place of its server among all.
    stretches: Vec<(u16, u16, usize)>,
}

impl Slots {
    /// Reads the answer to `CLUSTER SLOTS`; gives the masters as well. A server that does not know its own host is called
    /// by the name it was asked under.
    pub(super) fn read(answer: Value, asked: &str) -> RedisResult<(Self, Vec<Host>)> {
        let (mut stretches, mut hosts) = (Vec::new(), Vec::new());
        for row in from_redis_value::<Vec<Vec<Value>>>(answer)? {
            let mut row = row.into_iter();
            let (first, last) = (field(row.next())?, field(row.next())?);
            let mut master = field::<Vec<Value>>(row.next())?.into_iter();
            let name: Option<String> = field(master.next())?;
            let host =
                (name.filter(|name| !name.is_empty()).unwrap_or_else(|| asked.to_owned()), field(master.next())?);
            let place = hosts.iter().position(|known| *known == host).unwrap_or_else(|| {
                hosts.push(host);
                hosts.len() - 1
            });
            stretches.push((first, last, place));
        }
        Ok((Self { stretches }, hosts))
    }

    /// The place of the server that has this channel; `None` while no server has.
    pub(super) fn server(&self, channel: &str) -> Option<usize> {
        let slot = slot(channel);
        self.stretches.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, place)| *place)
    }
}

fn field<T: FromRedisValue>(value: Option<Value>) -> RedisResult<T> {
    Ok(from_redis_value(value.unwrap_or(Value::Nil))?)
}

/// The slot of a name without braces: CRC-16/XMODEM of all of it, as the specification of Redis Cluster has it.
fn slot(name: &str) -> u16 {
    let crc = name.bytes().fold(0u16, |crc, byte| {
        (0..8)
            .fold(crc ^ (u16::from(byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The first is the example of the specification, the others are what CLUSTER KEYSLOT gives.
        for (name, expected) in [("123456789", 0x31C3), ("danmakud:room:r1", 15_183), ("foo", 12_182), ("", 0)] {
            assert_eq!(slot(name), expected, "{name}");
        }
    }

    #[test]
    fn the_server_of_a_channel_is_found_and_a_nameless_one_is_the_one_asked() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let row = |first, last, host: Value, port| {
            let master = Value::Array(vec![host, Value::Int(port), text("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master])
        };
        let answer = Value::Array(vec![
            row(0, 99, text("a"), 1),
            row(100, 12_182, Value::Nil, 2),
            row(12_183, 12_739, text("a"), 1),
        ]);
        let (slots, hosts) = Slots::read(answer, "asked").unwrap();
        assert_eq!(hosts, [("a".to_owned(), 1), ("asked".to_owned(), 2)]);
        let servers = ["", "foo", "123456789", "danmakud:room:none"].map(|channel| slots.server(channel));
        assert_eq!(servers[..3], [Some(0), Some(1), Some(0)]);
        assert!(Slots::read(Value::Int(1), "asked").is_err());
    }
}
