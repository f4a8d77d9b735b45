//! Starts real `mongod` processes, as replica sets, and sees to it that none outlives the test process.

pub mod disk;
mod node;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt as _;
use mongodb::Client;
use mongodb::options::ClientOptions;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use self::disk::Disk;
use self::node::Mongod;

/// Starting takes about a second; a loaded machine gets a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// The administrator of a set with [`Access::Password`].
pub const ADMIN: &str = "admin:admin-pass";

/// Who may use a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    Open,
    /// [`ADMIN`].
    Password,
}

/// A replica set of one or more real servers; they are killed and their data removed when it is dropped, or when the
/// test process ends in whatever way.
pub struct ReplicaSet {
    nodes: Vec<Mongod>,
    access: Access,
}

static SHARED: OnceCell<ReplicaSet> = OnceCell::const_new();

impl ReplicaSet {
    /// The set of one that all tests of this process share, each with its own database. Expired documents leave it
    /// within about a second.
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(|| Self::start(1, Access::Open)).await
    }

    /// Starts a set of its own.
    pub async fn start(nodes: usize, access: Access) -> Self {
        Self::start_with(nodes, access, false).await
    }

    /// Starts a set of one whose data is on a disk of so many MiB, which [`ReplicaSet::fill_disk`] fills.
    pub async fn start_on_small_disk(mib: u32) -> Self {
        let disk = Arc::new(Disk::mount(mib));
        let set = Self { nodes: vec![Mongod::start(Access::Open, Some(disk)).await], access: Access::Open };
        set.initiate().await;
        set
    }

    /// Starts a set of its own in which every node may become the primary; the first one is at first.
    pub async fn start_of_equals(nodes: usize) -> Self {
        Self::start_with(nodes, Access::Open, true).await
    }

    async fn start_with(nodes: usize, access: Access, are_equal: bool) -> Self {
        let mut set = Self { nodes: Vec::new(), access };
        for _node in 0..nodes {
            set.nodes.push(Mongod::start(access, None).await);
        }
        set.initiate().await;
        if are_equal {
            set.make_equal().await;
        }
        set
    }

    async fn make_equal(&self) {
        let admin = direct(&self.first_address()).await.database("admin");
        let config = admin.run_command(doc! { "replSetGetConfig": 1 }).await.expect("the set is initiated");
        let mut config = config.get_document("config").expect("it is there").clone();
        let version = config.get_i32("version").expect("it is a number");
        config.insert("version", version + 1);
        for member in config.get_array_mut("members").expect("there are some") {
            member.as_document_mut().expect("a member").insert("priority", 1);
        }
        admin.run_command(doc! { "replSetReconfig": config }).await.expect("it is allowed");
    }

    /// A URI for the whole set, with `credentials` such as `user:password` if any.
    pub fn uri(&self, credentials: Option<&str>) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(Mongod::address).collect();
        let credentials = credentials.map(|pair| format!("{pair}@")).unwrap_or_default();
        format!("mongodb://{credentials}{}/?replicaSet=rs0", hosts.join(","))
    }

    /// The address of the first node, which was the first primary.
    pub fn first_address(&self) -> String {
        self.nodes.first().expect("a set has nodes").address()
    }

    /// A plain client with all rights.
    pub async fn client(&self) -> Client {
        let credentials = (self.access == Access::Password).then_some(ADMIN);
        Client::with_uri_str(self.uri(credentials)).await.expect("the URI is ours")
    }

    /// How often each text is in the collection that the server keeps its comments in by default.
    pub async fn texts(&self) -> HashMap<String, u32> {
        let comments = self.client().await.database("danmakud").collection::<Document>("danmaku");
        let mut texts = HashMap::new();
        let read = comments.find(doc! {}).projection(doc! { "content": 1 }).batch_size(10_000);
        let mut cursor = read.await.expect("it is back");
        while let Some(comment) = cursor.try_next().await.expect("it stays") {
            *texts.entry(comment.get_str("content").expect("a text").to_owned()).or_default() += 1;
        }
        texts
    }

    /// Stops a node where it stands: it takes connections and answers nothing.
    pub fn freeze(&self, node: usize) {
        self.nodes[node].signal("STOP");
    }

    /// Lets a frozen node go on.
    pub fn thaw(&self, node: usize) {
        self.nodes[node].signal("CONT");
    }

    /// Kills a node as `kill -9` does; its data stays.
    pub fn kill(&self, node: usize) {
        self.nodes[node].signal("KILL");
    }

    /// Starts a killed node anew, with its data, where it was.
    pub async fn restart(&mut self, node: usize) {
        let access = self.access;
        self.nodes[node].restart(access).await;
    }

    /// Takes all the room that a small disk still has.
    pub fn fill_disk(&self) {
        self.nodes[0].disk.as_ref().expect("it is on a small disk").fill();
    }

    /// Gives the room back.
    pub fn free_disk(&self) {
        self.nodes[0].disk.as_ref().expect("it is on a small disk").free();
    }

    /// Whether a node runs, be it frozen.
    pub fn is_running(&self, node: usize) -> bool {
        self.nodes[node].is_running()
    }

    /// Runs an administrator's command on one node.
    pub async fn command(&self, node: usize, command: Document) -> mongodb::error::Result<Document> {
        let client = match self.access {
            Access::Open => direct(&self.nodes[node].address()).await,
            Access::Password => self.client().await,
        };
        client.database("admin").run_command(command).await
    }

    /// Which node is the primary now, if any.
    pub async fn primary(&self) -> Option<usize> {
        for (number, node) in self.nodes.iter().enumerate() {
            let admin = direct(&node.address()).await.database("admin");
            let hello = admin.run_command(doc! { "hello": 1 }).into_future();
            let hello = tokio::time::timeout(Duration::from_secs(1), hello).await;
            if let Ok(Ok(hello)) = hello
                && hello.get_bool("isWritablePrimary").is_ok_and(|is_primary| is_primary)
            {
                return Some(number);
            }
        }
        None
    }

    /// Kills all nodes but the first.
    pub fn kill_all_but_the_first(&mut self) {
        self.nodes.truncate(1);
    }

    async fn initiate(&self) {
        let client = direct(&self.first_address()).await;
        let admin = client.database("admin");
        let members: Vec<_> = (0_i32..)
            .zip(&self.nodes)
            // Only the first may become the primary at first, so that tests know which it is.
            .map(|(id, node)| doc! { "_id": id, "host": node.address(), "priority": if id == 0 { 1 } else { 0 } })
            .collect();
        let settings = doc! { "electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500 };
        let config = doc! { "_id": "rs0", "members": members, "settings": settings };
        admin.run_command(doc! { "replSetInitiate": config }).await.expect("the set is initiated");
        until("the first node is the primary", async || {
            let hello = admin.run_command(doc! { "hello": 1 }).await.ok()?;
            hello.get_bool("isWritablePrimary").ok()?.then_some(())
        })
        .await;
        if self.access == Access::Password {
            let (user, password) = ADMIN.split_once(':').expect("it has both");
            // Without users yet, the server lets the first be made from the same machine.
            let create = doc! { "createUser": user, "pwd": password, "roles": ["root"] };
            admin.run_command(create).await.expect("the administrator is made");
        }
    }
}

async fn direct(address: &str) -> Client {
    let options = ClientOptions::parse(format!("mongodb://{address}/?directConnection=true")).await;
    Client::with_options(options.expect("the URI is ours")).expect("the options are ours")
}

/// Asks again until there is an answer, and fails when none comes within [`PATIENCE`].
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// The stages of a plan as `explain` gives it, from the last to the first.
pub fn stages(plan: &Document) -> Vec<String> {
    let mut all = vec![plan.get_str("stage").unwrap_or_default().to_owned()];
    let inputs = plan.get_array("inputStages").into_iter().flatten().filter_map(|input| input.as_document());
    for input in inputs.chain(plan.get_document("inputStage")) {
        all.extend(stages(input));
    }
    all
}
