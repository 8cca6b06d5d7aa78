/* shm.c - the life of a joined node: regions announced and mapped, deaths seen, sleepers woken. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "forked.h"
#include "order.h"
#include "status.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define REGION_BYTES_MAX (1ull << 46)

enum news_kind { NEWS_REGION = 1, NEWS_FREED = 2, NEWS_BELL = 3 };

struct news { /* a message between two ranks of a node; NEWS_REGION and NEWS_BELL come with a descriptor */
	uint32_t kind;
	uint32_t id;
	uint64_t bytes;
};

static _Atomic int64_t bytes_used;

uint64_t rr_shm_bytes_used(void)
{
	return (uint64_t)atomic_load_explicit(&bytes_used, memory_order_relaxed);
}

void rr_shm_bytes_add(int64_t bytes)
{
	atomic_fetch_add_explicit(&bytes_used, bytes, memory_order_relaxed);
}

static rr_status tell_all(struct rr_shm *shm, const struct news *news, int fd)
{
	for (int32_t r = 0; r < shm->world; r++) {
		if (r == shm->rank || shm->peers[r].socket < 0)
			continue;
		/* A peer that was told before a full socket stopped us is told again: it ignores that. */
		rr_status status = rr_shm_send(shm->peers[r].socket, news, sizeof(*news), fd);
		if (status == RR_AGAIN)
			return RR_AGAIN;
		/* A gone peer is the watch's matter, which names it better. */
	}
	return RR_OK;
}

rr_status rr_shm_announce(struct rr_shm *shm, const struct rr_region *region)
{
	struct news news = {.kind = NEWS_REGION, .id = region->id, .bytes = region->bytes};

	for (uint32_t i = 0; i < shm->announced_count; i++)
		if (shm->announced[i] == region->id)
			return RR_OK;
	if (shm->announced_count == shm->announced_room) {
		uint32_t room = shm->announced_room ? shm->announced_room * 2 : 16;
		uint32_t *larger = realloc(shm->announced, room * sizeof(*larger));
		if (!larger)
			return rr_fail(RR_ERR_NO_MEMORY, "no memory to announce %u regions", room);
		shm->announced = larger;
		shm->announced_room = room;
	}
	if (tell_all(shm, &news, region->fd) == RR_AGAIN)
		return RR_AGAIN;
	shm->announced[shm->announced_count++] = region->id;
	return RR_OK;
}

/* Regions that were freed since: tell, so that the peers drop their mappings. */
static void tell_freed(struct rr_shm *shm)
{
	uint64_t generation = rr_memory_generation();

	if (generation == shm->seen_generation)
		return;
	for (uint32_t i = 0; i < shm->announced_count;) {
		struct news news = {.kind = NEWS_FREED, .id = shm->announced[i]};
		if (rr_memory_lives(news.id)) {
			i++;
			continue;
		}
		if (tell_all(shm, &news, -1) == RR_AGAIN)
			return; /* seen_generation stays: we come back */
		shm->announced[i] = shm->announced[--shm->announced_count];
	}
	shm->seen_generation = generation;
}

static void take_region(struct rr_shm_peer *peer, const struct news *news, int fd)
{
	char *address;

	for (uint32_t i = 0; i < peer->mapping_count; i++)
		if (peer->mappings[i].id == news->id)
			return;
	if (news->bytes == 0 || news->bytes > REGION_BYTES_MAX || fd < 0 ||
	    (uint64_t)lseek(fd, 0, SEEK_END) < news->bytes)
		return; /* using it is then a protocol error, which names the peer */
	if (peer->mapping_count == peer->mapping_room) {
		uint32_t room = peer->mapping_room ? peer->mapping_room * 2 : 16;
		struct rr_mapping *larger = realloc(peer->mappings, room * sizeof(*larger));
		if (!larger)
			return;
		peer->mappings = larger;
		peer->mapping_room = room;
	}
	address = rr_own_map(NULL, news->bytes, fd, RR_CHILD_EMPTY);
	if (address == MAP_FAILED)
		return;
	madvise(address, news->bytes, MADV_HUGEPAGE);
	madvise(address, news->bytes, MADV_POPULATE_WRITE);
	peer->mappings[peer->mapping_count++] =
		(struct rr_mapping){.id = news->id, .address = address, .bytes = news->bytes};
}

static void drop_region(struct rr_shm_peer *peer, uint32_t id)
{
	for (uint32_t i = 0; i < peer->mapping_count; i++) {
		if (peer->mappings[i].id != id)
			continue;
		rr_own_unmap(peer->mappings[i].address, peer->mappings[i].bytes);
		peer->mappings[i] = peer->mappings[--peer->mapping_count];
		return;
	}
}

/* False when the peer's end is closed. */
static bool read_news(struct rr_shm_peer *peer)
{
	for (;;) {
		struct news news = {0};
		size_t got = 0;
		int fd = -1;
		rr_status status = rr_shm_receive(peer->socket, &news, sizeof(news), &got, &fd);

		if (status == RR_AGAIN)
			return true;
		if (status < 0)
			return false;
		if (got == sizeof(news) && news.kind == NEWS_REGION)
			take_region(peer, &news, fd);
		else if (got == sizeof(news) && news.kind == NEWS_FREED)
			drop_region(peer, news.id);
		else if (got == sizeof(news) && news.kind == NEWS_BELL && peer->bell < 0) {
			peer->bell = fd;
			fd = -1;
		}
		if (fd >= 0)
			rr_own_close(fd);
	}
}

void rr_shm_wake(struct rr_shm *shm, int32_t r)
{
	struct rr_page *page = shm->peers[r].page;
	uint32_t how = rr_own32(&page->sleeping);
	uint64_t one = 1;

	/* Pairs with the fence in rr_wait_step(): either we see it sleep, or it sees what we published. */
	if (how == RR_SLEEPS_NOT)
		return;
	if (how == RR_SLEEPS_ON_FUTEX) {
		atomic_fetch_add_explicit(&page->bell, 1, memory_order_release);
		syscall(SYS_futex, &page->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
		return;
	}
	int bell = r == shm->rank ? shm->bell : shm->peers[r].bell;
	if (bell < 0 && r != shm->rank) { /* its eventfd still waits in our socket */
		read_news(&shm->peers[r]);
		bell = shm->peers[r].bell;
	}
	if (bell >= 0 && write(bell, &one, sizeof(one)) < 0)
		return; /* the counter is full: it rings already */
}

rr_status rr_shm_start(struct rr_shm *shm, int bell)
{
	struct news news = {.kind = NEWS_BELL};

	rr_apart_begin(shm);
	shm->bell = bell;
	if (bell >= 0 && tell_all(shm, &news, bell) == RR_AGAIN)
		return rr_fail(RR_ERR_SETUP, "a new socket to a rank of this node is full");
	rr_publish32(&shm->page->state, RR_PAGE_RUNNING);
	return RR_OK;
}

static bool find_mapping(const struct rr_shm_peer *peer, uint32_t id, struct rr_mapping *out)
{
	for (uint32_t i = 0; i < peer->mapping_count; i++) {
		if (peer->mappings[i].id == id) {
			*out = peer->mappings[i];
			return true;
		}
	}
	return false;
}

rr_status rr_shm_mapping(struct rr_shm *shm, int32_t r, uint32_t id, struct rr_mapping *out)
{
	struct rr_shm_peer *peer = &shm->peers[r];

	if (find_mapping(peer, id, out))
		return RR_OK;
	read_news(peer); /* the announcement was sent before the OPEN that names it */
	if (find_mapping(peer, id, out))
		return RR_OK;
	return rr_fail(RR_ERR_PROTOCOL, "rank %d names registered memory %u, which cannot be mapped here: %s", r, id,
		       strerror(errno));
}

bool rr_shm_gone(const struct rr_shm *shm, int32_t r)
{
	struct pollfd item = {.fd = shm->peers[r].pidfd, .events = POLLIN};

	return item.fd >= 0 && poll(&item, 1, 0) > 0;
}

int32_t rr_shm_look(struct rr_shm *shm)
{
	int32_t dead = -1;

	tell_freed(shm);
	for (int32_t r = 0; r < shm->world; r++) {
		struct rr_shm_peer *peer = &shm->peers[r];
		bool gone;

		if (r == shm->rank || peer->socket < 0)
			continue;
		gone = !read_news(peer);
		/* A child that inherited the socket keeps it open after its parent's death: ask for the process, too. */
		gone = gone || rr_shm_gone(shm, r);
		if (gone && dead < 0 && rr_observe32(&peer->page->state) != RR_PAGE_CLOSED)
			dead = r;
	}
	return dead;
}

void rr_shm_own_slots(struct rr_shm *shm, int32_t r)
{
	const struct rr_layout *layout = &shm->layout;
	char *page = (char *)shm->peers[r].page;

	rr_pin_own(&shm->peers[r].slots, page + layout->slots, layout->message_slots - layout->slots);
}

void rr_shm_part(struct rr_shm *shm, int32_t r)
{
	struct rr_shm_peer *peer = &shm->peers[r];

	rr_pin_disown(&peer->slots);
	if (peer->page && r != shm->rank)
		rr_own_unmap(peer->page, shm->layout.bytes);
	if (peer->socket >= 0)
		rr_own_close(peer->socket);
	if (peer->pidfd >= 0)
		rr_own_close(peer->pidfd);
	if (peer->bell >= 0)
		rr_own_close(peer->bell);
	*peer = (struct rr_shm_peer){.socket = -1, .pidfd = -1, .bell = -1};
}

void rr_shm_close(struct rr_shm *shm)
{
	for (int32_t r = 0; shm->peers && r < shm->world; r++) {
		struct rr_shm_peer *peer = &shm->peers[r];
		for (uint32_t i = 0; i < peer->mapping_count; i++)
			rr_own_unmap(peer->mappings[i].address, peer->mappings[i].bytes);
		free(peer->mappings);
		rr_shm_part(shm, r);
	}
	if (shm->page) {
		rr_own_unmap(shm->page, shm->layout.bytes);
		rr_shm_bytes_add(-(int64_t)shm->layout.bytes);
	}
	free(shm->peers);
	free(shm->index);
	free(shm->announced);
	rr_common_free(shm->common);
	if (shm->memfd >= 0)
		rr_own_close(shm->memfd);
	memset(shm, 0, sizeof(*shm));
	shm->memfd = -1;
}
