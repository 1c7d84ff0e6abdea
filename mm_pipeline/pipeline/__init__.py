"""Pictures from bytes to embeddings, and videos and sounds from decoded parts to embeddings.

Knows nothing of caches, of batches across requests or of Ray.
"""

from mm_pipeline.pipeline.encoder import MediaEncoder
from mm_pipeline.pipeline.image import ImagePipeline
from mm_pipeline.pipeline.media import EncodedMedia

__all__ = ["EncodedMedia", "ImagePipeline", "MediaEncoder"]
