/* cuda_page.c - see cuda_page.h. */
#include "cuda_page.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

#define PAGE_BYTES (RR_CUDA_PAGE_WORDS * sizeof(uint32_t))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rr_cuda_page *unused;

static rr_status make(const struct rr_cuda *cuda, void *context, struct rr_cuda_page **out)
{
	struct rr_cuda_page *page = calloc(1, sizeof(*page));
	void *words = NULL;
	rr_status status;

	if (!page)
		return rr_fail(RR_ERR_NO_MEMORY, "no memory for a page of words");
	status = RR_CUDA(cuda, cuMemHostAlloc, &words, PAGE_BYTES, RR_CUDA_HOST_PORTABLE | RR_CUDA_HOST_MAPPED);
	if (status < 0)
		goto free_page;
	memset(words, 0, PAGE_BYTES);
	status = RR_CUDA(cuda, cuMemHostGetDevicePointer, &page->address, words, 0);
	if (status < 0)
		goto free_words;
	page->context = context;
	page->words = words;
	*out = page;
	return RR_OK;

free_words:
	(void)cuda->cuMemFreeHost(words);
free_page:
	free(page);
	return status;
}

rr_status rr_cuda_page_take(const struct rr_cuda *cuda, void *context, struct rr_cuda_page **out)
{
	struct rr_cuda_page **link = &unused, *found;

	pthread_mutex_lock(&lock);
	while (*link && (*link)->context != context)
		link = &(*link)->next;
	found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&lock);
	*out = found;
	return found ? RR_OK : make(cuda, context, out);
}

void rr_cuda_page_give(struct rr_cuda_page *page)
{
	pthread_mutex_lock(&lock);
	page->next = unused;
	unused = page;
	pthread_mutex_unlock(&lock);
}

void rr_cuda_page_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	unused = NULL;
}
