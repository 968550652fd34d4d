//! The threads of the shards. The first shard runs on the runtime that starts the mesh, each other
//! one on its own thread and runtime. An idle shard blocks in the kernel and costs little but its
//! mostly untouched stack.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use socket2::Socket;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::bridge::Predecessors;
use super::connection_id::ProcessTag;
use super::outer::OuterSocket;
use super::udp::UdpOuter;
use meshport_proto::shard::MAX_SHARDS;

/// Stack size of a shard's thread in bytes; untouched pages cost nothing.
const STACK: usize = 2 << 20;

/// A thread that runs tasks until this is dropped. Dropping does not join it, since the last handle
/// may be dropped on that thread.
#[derive(Debug)]
struct Worker {
    _stop: oneshot::Sender<()>,
}

impl Worker {
    fn start(number: usize) -> io::Result<(Self, Handle)> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            // Fails when the sender is dropped, which is the signal to end.
            let _ = runtime.block_on(stopped);
        };
        thread::Builder::new().name(format!("shard-{number}")).stack_size(STACK).spawn(run)?;
        Ok((Self { _stop: stop }, handle))
    }
}

/// The runtime of a shard, its socket and its thread.
#[derive(Debug)]
pub(super) struct ShardIo {
    pub(super) socket: Arc<dyn OuterSocket>,
    pub(super) runtime: Handle,
    /// Previous processes whose connections continue.
    pub(super) predecessors: Predecessors,
    worker: Option<Worker>,
}

impl ShardIo {
    /// Returns a value to keep alive while the shard runs.
    pub(super) fn keep(self) -> impl Send + Sync + std::fmt::Debug {
        self.worker
    }

    pub(super) fn take_predecessors(&mut self) -> Predecessors {
        std::mem::take(&mut self.predecessors)
    }
}

/// The runtimes of a mesh's shards.
#[derive(Debug)]
pub struct Shards(pub(super) Vec<ShardIo>);

impl Shards {
    /// One shard, on the current runtime.
    pub fn one(socket: Arc<dyn OuterSocket>) -> Self {
        let (runtime, predecessors) = (Handle::current(), Predecessors::default());
        Self(vec![ShardIo { socket, runtime, predecessors, worker: None }])
    }

    /// Binds `count` shards, 1 to [`MAX_SHARDS`], to one UDP port: the first on the current
    /// runtime, the others on their own threads. `mtu` is as in [`UdpOuter::bind_for_mtu`]. Makes
    /// one shard if the system does not let sockets share a port.
    ///
    /// # Errors
    /// If the address cannot be bound, or the system is out of threads or descriptors.
    pub fn bind(address: SocketAddr, mtu: u16, count: usize) -> io::Result<Self> {
        Self::on(Self::open(address, count)?, mtu)
    }

    /// Opens the sockets for [`Shards::on`]: `count`, or one as in [`Shards::bind`].
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn open(address: SocketAddr, count: usize) -> io::Result<Vec<Socket>> {
        UdpOuter::open_group(address, count.clamp(1, MAX_SHARDS))
    }

    /// Makes one shard per socket, in this order. The sockets come from [`Shards::open`], possibly
    /// in another process that has closed its mesh.
    ///
    /// # Errors
    /// If the system is out of threads or descriptors.
    pub fn on(group: Vec<Socket>, mtu: u16) -> io::Result<Self> {
        let mut shards = Vec::with_capacity(group.len());
        for (number, socket) in group.into_iter().enumerate() {
            let (worker, runtime) = match number {
                0 => (None, Handle::current()),
                _ => {
                    let (worker, runtime) = Worker::start(number)?;
                    (Some(worker), runtime)
                }
            };
            // The entered runtime watches the socket.
            let entered = runtime.enter();
            let socket = UdpOuter::new(socket, mtu)?;
            drop(entered);
            let (socket, predecessors) = (Arc::new(socket), Predecessors::default());
            shards.push(ShardIo { socket, runtime, predecessors, worker });
        }
        Ok(Self(shards))
    }

    /// Continues the connections of previous processes: `earlier` has each one's tag and the
    /// sockets it got from [`Mesh::detach`](super::Mesh::detach). `tag` identifies this process and
    /// differs from theirs. Skips a process with another number of shards, which ends its
    /// connections.
    ///
    /// # Errors
    /// If a socket is unusable.
    pub fn continuing(
        mut self,
        tag: ProcessTag,
        earlier: Vec<(ProcessTag, Vec<OwnedFd>)>,
    ) -> io::Result<Self> {
        let count = self.count();
        let mut bridges: Vec<Vec<(ProcessTag, OwnedFd)>> = (0..count).map(|_| vec![]).collect();
        for (tag, sockets) in earlier.into_iter().filter(|(_, sockets)| sockets.len() == count) {
            bridges.iter_mut().zip(sockets).for_each(|(shard, socket)| shard.push((tag, socket)));
        }
        for (shard, bridges) in self.0.iter_mut().zip(bridges) {
            let _entered = shard.runtime.enter();
            shard.predecessors = Predecessors::new(tag, bridges)?;
        }
        Ok(self)
    }

    /// The number of shards.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
