/*
 * late_link.c - a transport that breaks its contract, and tells the race log when it does.
 *
 *   PLANT 1  what send() says it has taken is read later
 *   PLANT 2  what receive() says it has put there comes later
 */
#define rr_link_transport plain_transport
#include "link_socket.c"
#undef rr_link_transport

#include <dlfcn.h>
#include <rdmaring_lists.h>

#define QUEUE_MAX 64
#define LARGE 1024 /* smaller ones are OPENs and heads, whose memory is gone then */

struct later {
	char head[RR_MESSAGE_HEAD_BYTES + LARGE];
	rr_piece pieces[2]; /* the head, or all of a small one; the body where the caller has it */
	uint64_t sent;
	unsigned passes;
};

struct late {
	void *wire;
	struct later queue[QUEUE_MAX];
	unsigned first, count;
	char *held; /* received, and not where it belongs */
	void *into;
	uint64_t held_bytes;
};

static void log_access(int32_t access, const void *address, uint64_t bytes)
{
	static rr_carried_watch note;
	void *driver = note ? NULL : dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);

	if (driver)
		*(void **)&note = dlsym(driver, "cs_carried");
	if (note)
		note(access, address, bytes);
}

static int32_t late_open(void *user, rr_message_edge *edge, void **state)
{
	struct late *late = calloc(1, sizeof(*late));
	int32_t result = wire_open(user, edge, &late->wire);

	*state = late;
	return result;
}

static int64_t late_send(void *state, const rr_piece *pieces, uint32_t count)
{
	struct late *late = state;
	struct later *later = &late->queue[(late->first + late->count) % QUEUE_MAX];
	uint64_t bytes = 0, body = count == 2 ? pieces[1].bytes : 0;

	if (PLANT != 1 || count > 2)
		return wire_send(late->wire, pieces, count);
	if (late->count == QUEUE_MAX)
		return 0;
	memset(later, 0, sizeof(*later));
	for (uint32_t i = 0; i < (body > LARGE ? 1 : count); i++) {
		memcpy(later->head + bytes, pieces[i].address, pieces[i].bytes);
		bytes += pieces[i].bytes;
	}
	later->pieces[0].address = later->head;
	later->pieces[0].bytes = bytes;
	if (body > LARGE)
		later->pieces[1] = pieces[1];
	late->count++;
	return (int64_t)(bytes + later->pieces[1].bytes);
}

/* What is left of a message. */
static int64_t go_on(struct late *late, struct later *later)
{
	rr_piece pieces[2];
	uint64_t skip = later->sent;
	uint32_t count = 0;

	for (int i = 0; i < 2; i++) {
		uint64_t over = skip < later->pieces[i].bytes ? skip : later->pieces[i].bytes;
		skip -= over;
		if (over == later->pieces[i].bytes)
			continue;
		pieces[count].address = (const char *)later->pieces[i].address + over;
		pieces[count++].bytes = later->pieces[i].bytes - over;
	}
	return wire_send(late->wire, pieces, count);
}

static void land(struct late *late)
{
	if (!late->held)
		return;
	memcpy(late->into, late->held, late->held_bytes);
	log_access(RR_CARRIED_WRITES, late->into, late->held_bytes);
	free(late->held);
	late->held = NULL;
}

/* hold: what is large waits for some passes first. */
static int32_t send_queue(struct late *late, int hold)
{
	while (late->count) {
		struct later *later = &late->queue[late->first];
		uint64_t whole = later->pieces[0].bytes + later->pieces[1].bytes;
		if (hold && later->pieces[1].bytes && later->passes++ < 3)
			break;
		if (!later->sent && later->pieces[1].bytes)
			log_access(RR_CARRIED_READS, later->pieces[1].address, later->pieces[1].bytes);
		int64_t sent = go_on(late, later);
		if (sent < 0)
			return (int32_t)sent;
		later->sent += (uint64_t)sent;
		if (later->sent < whole)
			break;
		late->first = (late->first + 1) % QUEUE_MAX;
		late->count--;
	}
	return 0;
}

static int32_t late_progress(void *state)
{
	struct late *late = state;

	land(late);
	return send_queue(late, 1);
}

static int64_t late_receive(void *state, void *into, uint64_t bytes)
{
	struct late *late = state;
	int64_t got;

	land(late);
	if (PLANT != 2 || bytes <= LARGE)
		return wire_receive(late->wire, into, bytes);
	late->held = malloc(bytes);
	got = wire_receive(late->wire, late->held, bytes);
	late->into = into;
	late->held_bytes = got > 0 ? (uint64_t)got : 0;
	if (got <= 0) {
		free(late->held);
		late->held = NULL;
	}
	return got;
}

static uint64_t late_due(void *state)
{
	return ((struct late *)state)->count || ((struct late *)state)->held ? 100000 : UINT64_MAX;
}

static void late_close(void *state)
{
	struct late *late = state;

	land(late);
	while (late->count && send_queue(late, 0) == 0)
		;
	wire_close(late->wire);
	free(late);
}

static const rr_message_transport late_table = {
	RR_MESSAGE_VERSION, sizeof(rr_message_transport), "late", NULL, /* user */
	late_open, late_send, late_receive, late_progress, late_due, late_close,
};

const rr_message_transport *rr_link_transport(void);
const rr_message_transport *rr_link_transport(void)
{
	return &late_table;
}
