/* errors.c - names of results, and which of them are sticky. */
#include "cs.h"

#include <stdlib.h>
#include <string.h>

static const struct {
	int number;
	const char *name;
} results[] = {
#include "results.inc" /* make_table.py, from cuda.h */
};

static const char *name_of(CUresult result)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (results[i].number == (int)result)
			return results[i].name;
	return NULL;
}

CUresult cs_result_of(const char *text)
{
	char *end;
	unsigned long number = strtoul(text, &end, 10);

	if (end != text && !*end)
		return name_of((CUresult)number) ? (CUresult)number : CUDA_SUCCESS;
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (!strcmp(results[i].name, text))
			return (CUresult)results[i].number;
	return CUDA_SUCCESS;
}

bool cs_is_sticky(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
		return true;
	default:
		return false;
	}
}

/* Both answer also after faults and before cuInit. */
static CUresult answer(CUresult result, const char **text)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = name_of(result);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CS_API(cuGetErrorName, 6000)(CUresult result, const char **text)
{
	return answer(result, text);
}

CS_API(cuGetErrorString, 6000)(CUresult result, const char **text)
{
	return answer(result, text);
}
