/*
 * cuda_page.h - pages of words in which the host and streams meet: mapped host memory.
 *
 * A page is never freed, but used again in its context: a stream of a caller may still wait for a ticket of lists that
 * are gone. So tickets go on where the page's last user stopped. Threads: any may take and give.
 */
#ifndef RR_CUDA_PAGE_H
#define RR_CUDA_PAGE_H

#include "cuda_api.h"

#define RR_CUDA_PAGE_WORDS 1024u

struct rr_cuda_page {
	void *context;
	_Atomic uint32_t *words;
	rr_cuda_ptr address; /* as the GPU has it */
	uint64_t ticket;     /* the last one */
	struct rr_cuda_page *next;
};

/* The context is current. */
rr_status rr_cuda_page_take(const struct rr_cuda *cuda, void *context, struct rr_cuda_page **out);
void rr_cuda_page_give(struct rr_cuda_page *page);
/* In a child of a fork: the pages are the parent's. */
void rr_cuda_page_forget(void);

#endif
