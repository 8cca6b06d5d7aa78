/*
 * hints.c - what to do about an error, for sites that say only what happened.
 *
 * A site that knows better writes its own hint over this one. Rows are found by the beginning of the format, so that
 * one row serves sites that say the same; a test refuses a row that no site uses, and a site without a hint whose
 * status has no advice. docs/ERRORS.md is made of these tables.
 */
#include <string.h>

#include "status.h"

static const struct {
	rr_status status;
	const char *begins; /* of the format */
	const char *hint;
} hints[] = {
	/* ---- links ---- */
	{RR_ERR_LINK, "rank %d on %.39s tells of no address", "bring up an interface on that host that this one can reach: ip address; rdmaring doctor HOST tells which are tried"},
	{RR_ERR_LINK, "reading %u bytes of rank %d's memory", "the kernel allowed it at the beginning: did kernel.yama.ptrace_scope or a seccomp profile change? RDMARING_CMA=0 goes without it"},
	{RR_ERR_LINK, "sendmsg on a node's socket", "see the output of the other ranks of this node: one of them has ended or closed the socket"},
	{RR_ERR_LINK, "the peer's end of a node's socket", "see the output of the other ranks of this node: one of them has ended"},
	{RR_ERR_LINK, "rank %d of this node has ended", "see that rank's output: its own error, or its end, is the cause"},
	{RR_ERR_LINK, "rank %d died", "the simulation was told to kill it"},
	{RR_ERR_LINK, "RDMA device %s is gone", "was its driver unloaded, or the device taken out of the container? rdmaring doctor lists what is left"},
	{RR_ERR_LINK, "RDMA device %s cannot be opened", "is /dev/infiniband mapped into the container, and may this user open it? rdmaring doctor looks"},
	{RR_ERR_LINK, "RDMA device %s", "the device refuses what every process needs: see dmesg, and how many processes use it (rdma resource show)"},
	{RR_ERR_LINK, "device %s gives no", "is the device out of that resource? rdma resource show counts them; fewer channels or queue pairs need less (RDMARING_CHANNELS, RDMARING_VERBS_QPS)"},
	{RR_ERR_LINK, "device %s: port %u is not active", "see the cable, the switch's port and the network device (ip link); rdmaring doctor shows the port's state"},
	{RR_ERR_LINK, "device %s does not reach the GPU memory", "let all rails reach it (rdmaring doctor), or RDMARING_VERBS_GPU_DIRECT=3 moves GPU vectors through host memory"},
	{RR_ERR_LINK, "device %s cannot send what was begun", "its limits differ from the other's: give links devices of one kind (RDMARING_VERBS_DEVICES)"},
	{RR_ERR_LINK, "device %s allows", "this device cannot carry links: name another in RDMARING_VERBS_DEVICES, or allow TCP"},
	{RR_ERR_LINK, "posting the flush of GPU memory", "the driver of the device failed: see dmesg; RDMARING_VERBS_GPU_DIRECT=3 moves GPU vectors through host memory instead"},
	{RR_ERR_LINK, "polling completions", "the driver of the device failed: see dmesg"},
	{RR_ERR_LINK, "arming completions", "the driver of the device failed: see dmesg"},
	{RR_ERR_LINK, "the edge %s was severed", "the error before this one is the cause; make a new communicator"},
	/* ---- the ranks meet ---- */
	{RR_ERR_SETUP, "rank %d speaks wire version", "install one version of rdmaring on all hosts; rdmaring --version tells it"},
	{RR_ERR_SETUP, "rank %d could not set up", "that rank's own error says more; see its output"},
	{RR_ERR_SETUP, "rank %d has %u slots", "give all ranks the same options and RDMARING_ variables"},
	{RR_ERR_SETUP, "rank %d wants edges", "give all ranks the same transport="},
	{RR_ERR_SETUP, "rank %d has channels=", "give all ranks the same channels=, or RDMARING_CHANNELS"},
	{RR_ERR_SETUP, "%s is a transport of version", "build the library against this release's rdmaring_link.h"},
	{RR_ERR_SETUP, "%s gives a table", "fill in every member of rr_message_transport; native/examples/link_socket.c shows one"},
	{RR_ERR_SETUP, "%s has the name", "give the transport a short name of its own"},
	{RR_ERR_SETUP, "%s; expected was", "give the path of a shared library; ldd tells which of its own libraries are missing"},
	{RR_ERR_SETUP, "%s is no transport", "export a function as rdmaring_link.h says; native/examples/link_socket.c shows one"},
	{RR_ERR_SETUP, "the exchange among the ranks", "the function that gathers bytes among the ranks gave up: its own error is the cause"},
	{RR_ERR_SETUP, "a new socket to a rank", "raise net.core.wmem_default, and see whether the other ranks of this node still run"},
	{RR_ERR_SETUP, "did not hear from rank", "see that rank's output: it is stopped, or too slow for timeout_s (RDMARING_TIMEOUT, in seconds)"},
	{RR_ERR_SETUP, "recvmsg on a node's socket", "do container profiles or seccomp filters forbid passing descriptors over unix sockets?"},
	{RR_ERR_SETUP, "a rank's introduction", "see the output of the other ranks of this node: one of them ended while it joined"},
	{RR_ERR_SETUP, "the segment of rank %d", "do two jobs or containers tell of the same host? give each its own RDMARING_HOST_ID"},
	{RR_ERR_SETUP, "cannot map the segment", "is a limit on address space set (ulimit -v), or on mappings (vm.max_map_count)?"},
	{RR_ERR_SETUP, "cannot reach rank %d, which tells of the same host", "ranks in containers of one host need a shared network namespace, or each container its own RDMARING_HOST_ID"},
	{RR_ERR_SETUP, "cannot send this rank's segment", "see that rank's output; do container profiles forbid passing descriptors over unix sockets?"},
	{RR_ERR_SETUP, "accept", "is the limit on open files reached (ulimit -n)?"},
	{RR_ERR_SETUP, "verbs.qps is", "give all ranks the same number of queue pairs (RDMARING_VERBS_QPS)"},
	{RR_ERR_SETUP, "slots are", "give all ranks the same options and RDMARING_ variables"},
	{RR_ERR_SETUP, "rank %d uses another GID", "keep the addresses of the RDMA ports while a job starts; start it again"},
	/* ---- the system ---- */
	{RR_ERR_SYSTEM, "too many open files", "raise the limit: ulimit -n, LimitNOFILE= of the service, docker --ulimit nofile=65536; rdmaring doctor tells what a rank needs"},
	{RR_ERR_SYSTEM, "epoll", "raise the limit on open files (ulimit -n)"},
	{RR_ERR_SYSTEM, "timerfd", "raise the limit on open files (ulimit -n)"},
	{RR_ERR_SYSTEM, "cannot start the progress thread", "raise the limit on processes (ulimit -u), or the pids limit of the container"},
	{RR_ERR_SYSTEM, "cannot list this host's addresses", "does a seccomp profile forbid netlink sockets?"},
	{RR_ERR_SYSTEM, "cannot listen", "raise the limit on open files (ulimit -n); free ports are counted by ss -s"},
	{RR_ERR_SYSTEM, "memfd_create", "raise the limit on open files (ulimit -n); does a seccomp profile forbid memfd_create?"},
	{RR_ERR_SYSTEM, "getrandom", "does a seccomp profile forbid getrandom?"},
	{RR_ERR_SYSTEM, "fcntl", "is the descriptor closed by other code of this process?"},
	/* ---- what this build, machine or plan does not serve ---- */
	{RR_ERR_UNSUPPORTED, "row %u adds", "choose an algorithm whose rows add fewer vectors: ring"},
	{RR_ERR_UNSUPPORTED, "all_to_all has its output", "give the output in one piece"},
	{RR_ERR_UNSUPPORTED, "a wait for", "use fewer links a list: fewer channels"},
	{RR_ERR_UNSUPPORTED, "a pass", "choose an algorithm whose rows add fewer vectors: ring"},
	{RR_ERR_UNSUPPORTED, "this driver has no memory operations", "update the driver; without them operations run from the host, by plans instead of lists"},
	{RR_ERR_UNSUPPORTED, "the link %s rank", "raise slot_count and slot_bytes of the lists' links"},
	{RR_ERR_UNSUPPORTED, "row %u", "run this schedule by a plan: the progress executor takes any order of rows"},
	{RR_ERR_UNSUPPORTED, "the enqueue executor", "run it by a plan: the progress executor takes them"},
	{RR_ERR_UNSUPPORTED, "paired", "with counts by pair send each pair's part directly, in a row of its own and one round; or make equal parts"},
	{RR_ERR_UNSUPPORTED, "mailboxes carry", "leave mailbox at 0: the rows are run then"},
	{RR_ERR_UNSUPPORTED, "wide needs", "raise slot_bytes (RDMARING_SLOT_BYTES), or leave wire= out"},
	{RR_ERR_UNSUPPORTED, "check", "leave check= out for vectors in GPU memory"},
	{RR_ERR_UNSUPPORTED, "%d ranks on one node", "start fewer ranks a node, each with more threads"},
	{RR_ERR_UNSUPPORTED, "on_device", "simulate the plan without on_device: its rows are the same"},
	{RR_ERR_UNSUPPORTED, "the driver has no cuMemGetHandleForAddressRange", "update the driver, or let GPU vectors go through host memory (RDMARING_VERBS_GPU_DIRECT=3)"},
	{RR_ERR_UNSUPPORTED, "GPU %d's driver has none", "install the open kernel modules, or let GPU vectors go through host memory (RDMARING_VERBS_GPU_DIRECT=3)"},
	{RR_ERR_UNSUPPORTED, "libibverbs lists", "load the kernel's modules (modprobe ib_uverbs) and install the provider of the device (ibverbs-providers)"},
	/* ---- operations ---- */
	{RR_ERR_MISMATCH, "rank %d called another operation", "all ranks must make the same calls in the same order with equal count, dtype, op, root and algorithm"},
	{RR_ERR_MISMATCH, "expects %llu bytes", "give each pair of ranks the same counts on both sides: sent by one, received by the other"},
	{RR_ERR_CORRUPT, "slice %u from rank", "memory, a cable or a NIC changes bytes, or a program its array while it is sent: test the memory of the rank that is named, and where a wire is, look at the ports' error counters (rdmaring links)"},
	{RR_ERR_CORRUPT, "the memory of rank %d changed", "something changed that rank's memory while it was in use: test it (memtester, EDAC counters), and look for code that writes into the arrays meanwhile"},
	{RR_ERR_TIMEOUT, "lists are still at work", "synchronize the caller's streams before close(): what they wait for is not enqueued, or never ends"},
	{RR_ERR_TIMEOUT, "the list's streams", "synchronize the stream before: what it waits for is not enqueued, or never ends"},
	{RR_ERR_TIMEOUT, "deadlock", "the schedule waits for itself: rdmaring schedule verify names the rows"},
	{RR_ERR_TIMEOUT, "the simulated world", "give fewer bytes or ranks"},
	{RR_ERR_ABORTED, "rank %d aborted", "abort() was called, or Ctrl-C pressed, on that rank; make a new communicator to go on"},
};

/* By -status; equal to `advice` of the Python class. The others need a hint at each site. */
static const char *const advice[] = {
	[-RR_ERR_ARGUMENT] = "correct the argument: nothing was changed, and the communicator can be used on",
	[-RR_ERR_NO_MEMORY] = "free memory, or ask for less: smaller slots (RDMARING_SLOT_BYTES), fewer communicators or ranks",
	[-RR_ERR_SCHEDULE] = "make the file again with `rdmaring schedule` of this release, and verify it",
	[-RR_ERR_PROTOCOL] = "install one version of rdmaring on all hosts; if they are equal, report this message",
	[-RR_ERR_PEER_FAILED] = "the error of the rank named is the cause: see its own output",
	[-RR_ERR_CLOSED] = "make a new communicator with rdmaring.init()",
	[-RR_ERR_SETUP] = "start all ranks anew; the output of the rank that is named says more",
};

const char *rr_status_advice(rr_status status)
{
	size_t at = (size_t)-(int64_t)status;

	return status < 0 && at < sizeof(advice) / sizeof(advice[0]) && advice[at] ? advice[at] : "";
}

const char *rr_hint_of(rr_status status, const char *format)
{
	for (size_t i = 0; i < sizeof(hints) / sizeof(hints[0]); i++)
		if (hints[i].status == status && strncmp(format, hints[i].begins, strlen(hints[i].begins)) == 0)
			return hints[i].hint;
	return "";
}
